// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes archives that torch::save() makes of modules, as flat names: the tensors of a
// child "a" are named "a.NAME". Thread rule: any thread, one file each.
#pragma once

#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::ckpt {

struct ModuleArchive {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<std::string> modules;  // Those with neither tensors nor children.
};

// Whether the file begins like such an archive (a zip archive).
bool is_archive(const std::string& path);

// The tensors are in the archive's order, on the CPU, contiguous. Throws Error, naming the path, if
// the file is not such an archive.
ModuleArchive read_archive(const std::string& path);

// Writes an archive that torch::load() reads into a module with these names. Throws Error if the
// name of a tensor is also a module's ("a" and "a.b"), or if writing fails.
void write_archive(const std::string& path, const ModuleArchive& content);

}  // namespace sherd::ckpt
