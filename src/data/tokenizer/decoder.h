// SPDX-License-Identifier: Apache-2.0
//
// The "decoder" of tokenizer.json, which joins tokens to text. Thread rule: any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

// From tokens as tokenizer.json writes them to text, which may end inside a character.
using Decoder = std::function<std::string(const std::vector<std::string>&)>;

// Throws Error, naming the decoder, if it is not supported.
Decoder decoder_of(const Component& component);

}  // namespace sherd::data
