// SPDX-License-Identifier: Apache-2.0
//
// The "normalizer" of tokenizer.json, which changes a text before it is cut into pieces. Thread
// rule: a normalizer is used by one thread at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

using TextStep = std::function<std::string(std::string_view)>;

// The steps in order; none if the component is null. Throws Error, naming the normalizer, if it is
// not supported.
std::vector<TextStep> normalizer_steps(const Component& component);

// REQUIRES: text is UTF-8.
std::string normalized(
    const std::vector<TextStep>& steps, std::string_view text);

}  // namespace sherd::data
