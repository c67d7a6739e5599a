// What a run hands back to people and programs: named figures, tables, charts and CSV files, turned into
// summary.json and one self-contained HTML page. No clock and no machine name in them: equal runs give equal
// bytes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace fathom::sim {

// An honest mark on every figure.
enum class Origin {
  kInput,       // given to the simulation, or follows from what was given by arithmetic
  kPrediction,  // came out of it
  kFit,         // a constant was chosen so that this comes out right
};

struct Figure {
  std::string name;  // with its unit, "ttft_s_p50"
  double value = 0;
  Origin origin = Origin::kPrediction;
  std::optional<double> published;
  std::string note;
};

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; one whose y is no number is left out
  bool steps = false;                             // holds its value until the next point
};

struct Chart {
  std::string title;
  std::string y_label;
  std::string x_label;
  std::vector<Series> series;
  std::vector<std::pair<double, std::string>> x_ticks;
  bool y_from_zero = true;
};

// Bars on lanes, such as the stages of a layer.
struct Timeline {
  struct Bar {
    int lane = 0;
    double begin = 0, end = 0;
    std::string label;
    int colour = 0;
  };
  std::string title;
  std::string x_label;
  std::vector<std::string> lanes;
  std::vector<Bar> bars;
};

struct Table {
  std::string title;
  std::string note;
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

struct CsvFile {
  std::string name;  // "hours.csv"
  std::string text;
};

struct Report {
  std::string title;
  std::string lead;                                        // one paragraph under the title
  std::vector<std::pair<std::string, std::string>> facts;  // how it was run: profile, hash, seed, options
  std::vector<Figure> figures;
  std::vector<Chart> charts;
  std::vector<Timeline> timelines;
  std::vector<Table> tables;
  std::vector<CsvFile> csv_files;

  const Figure* find(std::string_view name) const;
};

// The fact that names what a fraction's run does not tell of the whole.
inline constexpr const char* kBiasNotEstimated = "bias_not_estimated";

// One flat object: the facts as strings, the figures as numbers.
std::string summary_json(const Report& report);
// What summary_json wrote, read again. Errors name file, line and field.
struct Summary {
  std::map<std::string, std::string> facts;  // as escaped in the file
  std::map<std::string, double> figures;
};
Result<Summary> parse_summary_json(const std::string& file, std::string_view text);
std::string report_html(const Report& report);
// 1, 2 or 5 times a power of ten, so that about five steps cover the span.
double nice_step(double span);
// The figures of two runs side by side, under what was set differently.
Table compare_table(const Report& report, const Summary& other, const std::string& other_name);

// 12345.678 -> "12,346"; small values keep three digits.
std::string pretty_number(double value);
// What stands between the quotes of a string of JSON or TOML, which allows no control character of ASCII.
std::string json_escape(std::string_view text);

}  // namespace fathom::sim
