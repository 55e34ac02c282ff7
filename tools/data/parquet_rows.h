// SPDX-License-Identifier: Apache-2.0
//
// The text column of a Parquet file, row by row. A Python with pyarrow reads the file, in a process
// of its own that writes JSON lines into a pipe: Debian has no C++ library for Parquet, and the one
// inside pyarrow's wheel changes its name with each release. Thread rule: one thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include "data/document_reader.h"

namespace sherd::tools {

bool is_parquet(const std::string& path);  // Judged by its name.

// Calls `each` with the texts of the column `field` in order, without rows that have none or an
// empty one. At most one row group's column is in memory at a time. Throws Error, naming the path,
// what was expected and what was found: the column does not exist or is no plain column of text
// (with the columns that exist); the file is damaged or no Parquet file; there is no such program,
// or it has no pyarrow (with the commands that help). `each` may have been called before that.
void for_each_parquet_row(
    const std::string& path,
    const DocumentOptions& options,
    const std::function<void(std::string_view)>& each);

}  // namespace sherd::tools
