// The HTML page of a report: inline style and SVG, no script, no network.
#include <algorithm>
#include <cmath>

#include "sim/report.h"

namespace fathom::sim {
namespace {

constexpr double kWidth = 720, kHeight = 250, kLeft = 64, kRight = 12, kTop = 10, kBottom = 34;
constexpr const char* kColours[] = {"#2563eb", "#d97706", "#059669", "#dc2626",
                                    "#7c3aed", "#0891b2", "#be185d", "#4b5563"};

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

struct Range {
  double low = 0, high = 1;
};

Range y_range(const Chart& chart) {
  Range range{1e300, -1e300};
  for (const Series& s : chart.series) {
    for (const auto& [x, y] : s.points) {
      if (!std::isfinite(y)) continue;
      range.low = std::min(range.low, y);
      range.high = std::max(range.high, y);
    }
  }
  if (range.low > range.high) return {};
  if (chart.y_from_zero) range.low = std::min(range.low, 0.0);
  const double margin = (range.high - range.low) * 0.06;
  range.high += margin > 0 ? margin : 1;
  if (!chart.y_from_zero) range.low -= margin;
  return range;
}

Range x_range(const Chart& chart) {
  Range range{1e300, -1e300};
  for (const Series& s : chart.series) {
    for (const auto& [x, y] : s.points) {
      range.low = std::min(range.low, x);
      range.high = std::max(range.high, x);
    }
  }
  if (range.low >= range.high) return {0, 1};
  return range;
}

double x_at(double x, const Range& r) {
  return kLeft + (x - r.low) / (r.high - r.low) * (kWidth - kLeft - kRight);
}
double y_at(double y, const Range& r) {
  return kHeight - kBottom - (y - r.low) / (r.high - r.low) * (kHeight - kTop - kBottom);
}

std::string tick_label(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 1e9) return fmt::format("{:g} G", value / 1e9);
  if (magnitude >= 1e6) return fmt::format("{:g} M", value / 1e6);
  if (magnitude >= 1e4) return fmt::format("{:g} k", value / 1e3);
  return fmt::format("{:g}", std::round(value * 1e6) / 1e6);
}

std::string grid(const Chart& chart, const Range& xr, const Range& yr) {
  std::string out;
  const double step = nice_step(yr.high - yr.low);
  for (double y = std::ceil(yr.low / step) * step; y <= yr.high; y += step) {
    out += fmt::format("<line x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}' class='grid'/>", kLeft, kWidth - kRight,
                       y_at(y, yr), y_at(y, yr));
    out += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>", kLeft - 6, y_at(y, yr) + 4,
                       tick_label(y));
  }
  for (const auto& [x, label] : chart.x_ticks) {
    if (x < xr.low || x > xr.high) continue;
    out += fmt::format("<text x='{:.1f}' y='{}' text-anchor='middle'>{}</text>", x_at(x, xr),
                       kHeight - kBottom + 16, escape(label));
  }
  out += fmt::format("<text x='{}' y='{}' text-anchor='end'>{}</text>", kWidth - kRight, kHeight - 3,
                     escape(chart.x_label));
  return out;
}

std::string chart_svg(const Chart& chart) {
  const Range xr = x_range(chart);
  const Range yr = y_range(chart);
  std::string out =
      fmt::format("<figure><figcaption>{} <small>({})</small></figcaption><svg viewBox='0 0 {} {}'>",
                  escape(chart.title), escape(chart.y_label), kWidth, kHeight);
  out += grid(chart, xr, yr);
  bool drawn = false;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    std::string points;
    double last_y = 0;
    for (const auto& [x, y] : chart.series[i].points) {
      if (!std::isfinite(y)) continue;
      drawn = true;
      if (chart.series[i].steps && !points.empty())
        points += fmt::format("{:.1f},{:.1f} ", x_at(x, xr), y_at(last_y, yr));
      points += fmt::format("{:.1f},{:.1f} ", x_at(x, xr), y_at(y, yr));
      last_y = y;
    }
    out += fmt::format("<polyline fill='none' stroke='{}' stroke-width='1.8' points='{}'/>",
                       kColours[i % std::size(kColours)], points);
  }
  if (!drawn)
    out += fmt::format("<text x='{}' y='{}' text-anchor='middle'>no values in this run</text>", kWidth / 2,
                       kHeight / 2);
  out += "</svg><div class='legend'>";
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += fmt::format("<span><i style='background:{}'></i>{}</span>", kColours[i % std::size(kColours)],
                       escape(chart.series[i].name));
  }
  return out + "</div></figure>\n";
}

std::string timeline_svg(const Timeline& timeline) {
  constexpr double kLane = 34;
  const double height = kLane * static_cast<double>(timeline.lanes.size()) + kBottom;
  double end = 0;
  for (const Timeline::Bar& bar : timeline.bars) end = std::max(end, bar.end);
  const Range xr{0, end > 0 ? end : 1};
  std::string out = fmt::format("<figure><figcaption>{}</figcaption><svg viewBox='0 0 {} {}'>",
                                escape(timeline.title), kWidth, height);
  for (size_t lane = 0; lane < timeline.lanes.size(); ++lane) {
    out += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>", kLeft - 6,
                       kLane * (static_cast<double>(lane) + 0.6), escape(timeline.lanes[lane]));
  }
  for (const Timeline::Bar& bar : timeline.bars) {
    const double x = x_at(bar.begin, xr);
    const double width = std::max(0.5, x_at(bar.end, xr) - x);
    const double y = kLane * bar.lane + 4;
    out += fmt::format(
        "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{}' fill='{}'><title>{} "
        "{:.1f}-{:.1f}</title></rect>",
        x, y, width, kLane - 8, kColours[bar.colour % 8], escape(bar.label), bar.begin, bar.end);
    if (width > 7.0 * static_cast<double>(bar.label.size())) {
      out += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle' class='on'>{}</text>",
                         x + width / 2, y + 17, escape(bar.label));
    }
  }
  const double step = nice_step(end);
  for (double x = 0; x <= end; x += step) {
    out += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='middle'>{}</text>", x_at(x, xr),
                       height - kBottom + 14, tick_label(x));
  }
  out += fmt::format("<text x='{}' y='{:.1f}' text-anchor='end'>{}</text>", kWidth - kRight, height - 2,
                     escape(timeline.x_label));
  return out + "</svg></figure>\n";
}

std::string table_html(const Table& table) {
  std::string out = fmt::format("<h2>{}</h2>", escape(table.title));
  if (!table.note.empty()) out += fmt::format("<p>{}</p>", escape(table.note));
  out += "<div class='wide'><table><tr>";
  for (const std::string& column : table.columns) out += fmt::format("<th>{}</th>", escape(column));
  out += "</tr>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (const std::string& field : row) out += fmt::format("<td>{}</td>", escape(field));
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

const char* origin_name(Origin origin) {
  return origin == Origin::kInput ? "input" : origin == Origin::kFit ? "fit" : "prediction";
}

Table figures_table(const Report& report) {
  Table table{"Published against simulated",
              "input: given to the simulation, so a match proves nothing; prediction: came out of it; fit: a "
              "constant "
              "was chosen so that it comes out right.",
              {"figure", "simulated", "published", "difference", "what it is", "note"},
              {}};
  for (const Figure& f : report.figures) {
    if (!f.published) continue;
    const double difference = *f.published != 0 ? 100 * (f.value / *f.published - 1) : 0;
    table.rows.push_back({f.name, pretty_number(f.value), pretty_number(*f.published),
                          fmt::format("{:+.2f} %", difference), origin_name(f.origin), f.note});
  }
  return table;
}

Table other_figures_table(const Report& report) {
  Table table{"All other figures", "", {"figure", "value", "what it is", "note"}, {}};
  for (const Figure& f : report.figures) {
    if (!f.published) table.rows.push_back({f.name, pretty_number(f.value), origin_name(f.origin), f.note});
  }
  return table;
}

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;color:#111827;max-width:1500px;margin:2em auto;padding:0 1em}"
    "h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.15em;margin:1.6em 0 .4em}"
    "figure{margin:0;padding:.6em;border:1px solid #e5e7eb;border-radius:8px}figcaption{font-weight:600}"
    "figcaption small{font-weight:400;color:#6b7280}.charts{display:grid;gap:14px;"
    "grid-template-columns:repeat(auto-fit,minmax(min(560px,100%),1fr))}svg{width:100%;height:auto;display:"
    "block}"
    "svg text{font-size:11px;fill:#4b5563}svg text.on{fill:#fff}.grid{stroke:#e5e7eb}"
    ".legend span{margin-right:1.2em;font-size:13px;color:#374151}.legend "
    "i{display:inline-block;width:12px;height:3px;"
    "margin-right:5px;vertical-align:middle}table{border-collapse:collapse;font-size:13.5px}"
    "td,th{padding:.25em .8em;border-bottom:1px solid "
    "#e5e7eb;text-align:left;font-variant-numeric:tabular-nums}"
    ".wide{overflow-x:auto}.facts{color:#4b5563;font-size:13px}";

}  // namespace

double nice_step(double span) {
  double step = 1e-9;
  while (step * 10 < span / 5) step *= 10;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (span / (step * factor) <= 6) return step * factor;
  }
  return step * 10;
}

std::string report_html(const Report& report) {
  std::string out = fmt::format(
      "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
      "content='width=device-width'>"
      "<title>{0}</title><style>{1}</style>\n<h1>{0}</h1><p>{2}</p><p class='facts'>",
      escape(report.title), kStyle, escape(report.lead));
  for (const auto& [name, value] : report.facts)
    out += fmt::format("{} <b>{}</b> &nbsp; ", escape(name), escape(value));
  out += "</p>\n<div class='charts'>";
  for (const Chart& chart : report.charts) out += chart_svg(chart);
  for (const Timeline& timeline : report.timelines) out += timeline_svg(timeline);
  out += "</div>\n";
  const Table published = figures_table(report);
  if (!published.rows.empty()) out += table_html(published);
  for (const Table& table : report.tables) out += table_html(table);
  out += table_html(other_figures_table(report));
  return out + "</html>\n";
}

}  // namespace fathom::sim
