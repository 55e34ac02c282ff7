// SPDX-License-Identifier: Apache-2.0
//
// What tokenizer.json's "post_processor" puts around a text. Thread rule: pure function.
#pragma once

#include <sherd/data/tokenizer.h>
#include "data/tokenizer/component.h"

namespace sherd::data {

// Sets `before` and `after`. Throws Error for a post-processor that is not supported, by its name.
void read_post_processor(const Component& component, SpecialTokens& to);

}  // namespace sherd::data
