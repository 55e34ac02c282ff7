// SPDX-License-Identifier: Apache-2.0
#include "ckpt/archive.h"

#include <fstream>
#include <map>
#include <memory>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/serialize/archive.h>

#include "base/check.h"
#include "base/printable.h"

namespace sherd::ckpt {
namespace {

// LibTorch writes names into code in quotation marks, and cannot read these.
void check_name(const std::string& name) {
  SHERD_CHECK(
      name.find_first_of("\"\\\n") == std::string::npos,
      "[ckpt] an archive cannot hold the name ", printable(name, 200),
      ", which has a quotation mark, a backslash or a line break");
}

// A module, nested as in an archive.
struct ModuleNode {
  std::map<std::string, std::unique_ptr<ModuleNode>> children;
  std::map<std::string, at::Tensor> tensors;

  // The child module of that name, which is made if it does not exist.
  ModuleNode& at(const std::string& name) {
    if (name.empty()) {
      return *this;
    }
    const auto dot = name.find('.');
    auto& child = children[name.substr(0, dot)];
    if (child == nullptr) {
      child = std::make_unique<ModuleNode>();
    }
    return child->at(
        dot == std::string::npos ? std::string() : name.substr(dot + 1));
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    const auto dot = name.rfind('.');
    const bool own = dot == std::string::npos;
    at(own ? std::string() : name.substr(0, dot))
        .tensors.emplace(own ? name : name.substr(dot + 1), tensor);
  }

  void write(torch::serialize::OutputArchive& archive) const {
    for (const auto& [name, tensor] : tensors) {
      SHERD_CHECK(
          !children.contains(name), "[ckpt] an archive cannot hold tensor ",
          name, " beside a module of that name");
      check_name(name);
      archive.write(name, tensor, /*is_buffer=*/!tensor.is_floating_point());
    }
    for (const auto& [name, child] : children) {
      check_name(name);
      torch::serialize::OutputArchive nested(archive.compilation_unit());
      child->write(nested);
      archive.write(name, nested);
    }
  }
};

}  // namespace

bool is_archive(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char first[4] = {};
  return file.read(first, sizeof first) && first[0] == 'P' && first[1] == 'K' &&
      first[2] == 3 && first[3] == 4;
}

ModuleArchive read_archive(const std::string& path) {
  ModuleArchive content;
  try {
    const auto module = torch::jit::load(path, c10::Device(c10::kCPU));
    for (const auto& attribute : module.named_attributes()) {
      if (attribute.value.isTensor() && attribute.value.toTensor().defined()) {
        content.tensors.emplace_back(
            attribute.name, attribute.value.toTensor().detach().contiguous());
      }
    }
    for (const auto& child : module.named_modules()) {
      if (!child.name.empty() && child.value.attributes().size() == 0) {
        content.modules.push_back(child.name);
      }
    }
  } catch (const c10::Error& error) {
    throw Error(
        str("[ckpt] ", path,
            ": expected an archive that torch::save() made, found ",
            error.what_without_backtrace()));
  }
  return content;
}

void write_archive(const std::string& path, const ModuleArchive& content) {
  const at::NoGradGuard no_grad;
  ModuleNode root;
  for (const auto& [name, tensor] : content.tensors) {
    root.add(name, tensor);
  }
  for (const auto& name : content.modules) {
    root.at(name);
  }
  torch::serialize::OutputArchive archive;
  root.write(archive);
  try {
    archive.save_to(path);
  } catch (const c10::Error& error) {
    throw Error(
        str("[ckpt] ", path, ": expected a file that can be written, found ",
            error.what_without_backtrace()),
        ErrorCode::kUnavailable);
  }
}

}  // namespace sherd::ckpt
