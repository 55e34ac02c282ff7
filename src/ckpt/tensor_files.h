// SPDX-License-Identifier: Apache-2.0
//
// The tensors of files that other programs wrote: safetensors files, which are mapped, and archives
// that torch::save() made of modules. Thread rule: one thread; pieces may be read from any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "base/mapped_file.h"
#include "ckpt/part_writer.h"

namespace sherd::ckpt {

class TensorFiles {
 public:
  // Reads the headers. Throws Error, naming the file, if a file cannot be read, is damaged, or has
  // a tensor of a dtype that LibTorch lacks.
  TensorFiles(
      const std::vector<std::string>& files, const ImportOptions& options);

  // Each tensor as a whole, under the name that options.rename gives it. The elements are in the
  // files and must only be read; they are valid while this object lives.
  const std::vector<TensorPiece>& pieces() const { return pieces_; }

  // The modules of archives that have neither tensors nor children; empty if no file says so.
  const std::optional<std::vector<std::string>>& modules() const {
    return modules_;
  }

 private:
  std::vector<MappedFile> mapped_;
  std::vector<TensorPiece> pieces_;
  std::optional<std::vector<std::string>> modules_;
};

}  // namespace sherd::ckpt
