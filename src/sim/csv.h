// Rows of a comma-separated file without quoting, with the line number of each, and numbers read with an
// error that names file, line and field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom::sim {

struct CsvRow {
  int line = 0;  // from 1
  std::vector<std::string_view> fields;
};

// Lines that are empty or start with '#' are left out, and so is a byte order mark. Fields are views into
// `text`.
std::vector<CsvRow> csv_rows(std::string_view text);

// field_idx must exist and be a whole decimal number in [min, max].
Result<double> csv_number(const std::string& file, const CsvRow& row, size_t field_idx, std::string_view name,
                          double min, double max);
Result<int64_t> csv_integer(const std::string& file, const CsvRow& row, size_t field_idx,
                            std::string_view name, int64_t min, int64_t max);

// Exactly so many fields: what a row has beyond them nobody reads, so it is no row of this file.
Status csv_width(const std::string& file, const CsvRow& row, size_t num_fields);
// The last line ends in a line feed; else its last number may have lost digits, and nothing in it tells.
Status csv_whole(const std::string& file, std::string_view text);

// A mark that some editors put before a text; readers skip it.
inline constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// A file's own words for an error: one short line, whatever bytes they are.
std::string printable_excerpt(std::string_view text);

}  // namespace fathom::sim
