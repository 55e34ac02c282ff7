// SPDX-License-Identifier: Apache-2.0
//
// The tensors of files that other programs wrote: safetensors files, which are mapped, and archives
// that torch::save() made of modules. Thread rule: one thread; reading the pieces from any.
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
  // Reads the headers. Throws Error naming the file that cannot be read, is damaged, or has a
  // tensor of a dtype that LibTorch lacks.
  TensorFiles(
      const std::vector<std::string>& files, const ImportOptions& options);

  // Each tensor whole, under the name that options.rename gives it. The elements lie in the files
  // and are only to be read; they are valid while this object lives.
  const std::vector<TensorPiece>& pieces() const { return pieces_; }

  // The modules of archives that have neither tensors nor children; none where no file says so.
  const std::optional<std::vector<std::string>>& modules() const {
    return modules_;
  }

 private:
  std::vector<MappedFile> mapped_;
  std::vector<TensorPiece> pieces_;
  std::optional<std::vector<std::string>> modules_;
};

}  // namespace sherd::ckpt
