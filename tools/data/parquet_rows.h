// SPDX-License-Identifier: Apache-2.0
//
// The text column of a Parquet file, row by row. A Python with pyarrow reads the file, in a process
// of its own that writes JSON lines into a pipe: Debian has no C++ library for Parquet, and the one
// inside pyarrow's wheel changes its name with each release. Thread rule: one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sherd::tools {

bool is_parquet(const std::string& path);  // By its name.

struct ParquetOptions {
  std::string column = "text";
  std::string python = "python3";  // A program on PATH, or a path.
};

// Calls `each` with the texts of the column in their order; rows with none, or an empty one, are
// left out. At most a row group's column is in memory at a time. Throws Error, naming the path,
// what was expected and what was found: the column is not there or no plain column of text (with
// the columns that are); the file is damaged or no Parquet; there is no such program, or it has no
// pyarrow (with the commands that help). `each` may have been called before.
void for_each_parquet_row(
    const std::string& path,
    const ParquetOptions& options,
    const std::function<void(std::string_view)>& each);

}  // namespace sherd::tools
