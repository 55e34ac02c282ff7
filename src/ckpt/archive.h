// SPDX-License-Identifier: Apache-2.0
//
// Archives that torch::save() makes of modules, read and written as names: those of a child
// "a" are "a.NAME". Thread rule: any thread, one file each.
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

// Whether the file begins as such an archive does (a zip archive).
bool is_archive(const std::string& path);

// Its tensors are in the archive's order, on the CPU, contiguous. Throws Error naming the path for
// a file that is no such archive.
ModuleArchive read_archive(const std::string& path);

// Writes what torch::load() reads into a module with these names. Throws Error when a name is also
// a module's ("a" and "a.b"), and when writing fails.
void write_archive(const std::string& path, const ModuleArchive& content);

}  // namespace sherd::ckpt
