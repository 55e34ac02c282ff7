// SPDX-License-Identifier: Apache-2.0
//
// Archives that torch::save() makes of modules, read and written as named tensors: those of a child
// "a" are "a.NAME". Thread rule: any thread, one file each.
#pragma once

#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::ckpt {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Whether the file begins as such an archive does (a zip archive).
bool is_archive(const std::string& path);

// The archive's tensors in its order, on the CPU, contiguous. Throws Error naming the path for a
// file that is no such archive.
NamedTensors read_archive(const std::string& path);

// Writes what torch::load() reads into a module with these names. Throws Error when a name is also
// a module's ("a" and "a.b"), and when writing fails.
void write_archive(const std::string& path, const NamedTensors& tensors);

}  // namespace sherd::ckpt
