// SPDX-License-Identifier: Apache-2.0
//
// What tokenizer.json's "decoder" does: it joins tokens to text. Thread rule: any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

// Text that may be cut inside of a character, from tokens as tokenizer.json writes them.
using Decoder = std::function<std::string(const std::vector<std::string>&)>;

// Throws Error for a decoder that is not supported, by its name.
Decoder decoder_of(const Component& component);

}  // namespace sherd::data
