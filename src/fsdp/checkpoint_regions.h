// SPDX-License-Identifier: Apache-2.0
//
// What the copies of an ActivationCheckpointing share: the chosen modules, which of them
// nevertheless keep their activations, and the recorder that watches them run. Thread rule: any
// thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include "fsdp/step_recorder.h"

namespace torch::nn {
class Module;
}

namespace sherd::fsdp {

class CheckpointRegions {
 public:
  // Called once for each chosen module.
  void take(const torch::nn::Module* module, std::string name) {
    numbers_.emplace(module, static_cast<int>(names_.size()));
    names_.push_back(std::move(name));
    keeps_.push_back(false);
  }

  int size() const { return static_cast<int>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }
  // -1: the module was not chosen.
  int number_of(const torch::nn::Module* module) const {
    const auto found = numbers_.find(module);
    return found == numbers_.end() ? -1 : found->second;
  }

  bool keeps(int region) const {
    const std::lock_guard lock(mu_);
    return keeps_[static_cast<std::size_t>(region)];
  }
  // By number; applies to regions that begin from now on.
  void set_keeps(std::vector<bool> keeps) {
    const std::lock_guard lock(mu_);
    keeps_ = std::move(keeps);
  }

  std::shared_ptr<StepRecorder> recorder() const {
    const std::lock_guard lock(mu_);
    return recorder_;
  }
  void set_recorder(std::shared_ptr<StepRecorder> recorder) {
    const std::lock_guard lock(mu_);
    recorder_ = std::move(recorder);
  }

 private:
  std::map<const torch::nn::Module*, int> numbers_;
  std::vector<std::string> names_;
  mutable std::mutex mu_;
  std::vector<bool> keeps_;                 // Guarded by mu_.
  std::shared_ptr<StepRecorder> recorder_;  // Guarded by mu_.
};

}  // namespace sherd::fsdp
