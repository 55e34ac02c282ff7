// SPDX-License-Identifier: Apache-2.0
//
// A "pattern" of tokenizer.json: {"Regex": text} or {"String": text}. Thread rule: pure function.
#pragma once

#include "data/tokenizer/component.h"
#include "data/tokenizer/regex.h"

namespace sherd::data {

inline Regex pattern_of(const Component& component) {
  if (component.json.contains("String")) {
    return Regex(
        quoted_pattern(component.json["String"].get<std::string>()),
        component.where);
  }
  return Regex(component.json.at("Regex").get<std::string>(), component.where);
}

}  // namespace sherd::data
