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
  std::vector<std::int64_t> ids = {};  // The prompt's, and those behind it.
  std::size_t prompt = 0;              // How many are the prompt's.
  std::int64_t vocabulary = 0;
};

// The sample as people read it, with a bar behind the prompt: by the tokenizer in `folder`; without
// one bytes for a vocabulary of 256, else numbers. What a terminal would obey is left out.
std::string text_of(const Sample& sample, const std::string& folder);

}  // namespace sherd::tools
