// SPDX-License-Identifier: Apache-2.0
//
// The sample that `sherd train` prints at its end. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::tools {

struct Sample {
  // The tokens of the prompt, and those after it.
  // How many belong to the prompt.
  std::vector<std::int64_t> ids = {};
  std::size_t prompt = 0;
  bool bytes = false;  // Whether tokens are bytes if there is no tokenizer.
};

// The sample for people, with a bar after the prompt: decoded by the tokenizer in `folder`; without
// one as bytes or as numbers. Characters that a terminal would obey are left out.
std::string text_of(const Sample& sample, const std::string& folder);

}  // namespace sherd::tools
