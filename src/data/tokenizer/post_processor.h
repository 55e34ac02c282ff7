// SPDX-License-Identifier: Apache-2.0
//
// The "post_processor" of tokenizer.json, which puts tokens around a text. Thread rule: a pure
// function.
#pragma once

#include <sherd/data/tokenizer.h>
#include "data/tokenizer/component.h"

namespace sherd::data {

// Sets `before` and `after`. Throws Error, naming the post-processor, if it is not supported.
void read_post_processor(const Component& component, SpecialTokens& to);

}  // namespace sherd::data
