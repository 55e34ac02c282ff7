// SPDX-License-Identifier: Apache-2.0
#include <string_view>
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/stages.h"

namespace sherd::data {
namespace {

std::string from_bytes(const std::vector<std::string>& tokens) {
  std::string text;
  for (const auto& token : tokens) {
    text += bytes_of_token(token).value_or(token);
  }
  return text;
}

// Turns marks into spaces, and drops those of the first token if encoding adds one there.
Decoder metaspace_decoder(const Component& component) {
  const std::string mark = component.json.at("replacement");
  const bool prepends =
      component.json.value("prepend_scheme", std::string("always")) !=
          "never" &&
      component.json.value("add_prefix_space", true);
  return [mark, prepends](const std::vector<std::string>& tokens) {
    std::string text;
    bool first = true;
    for (const auto& token : tokens) {
      std::string_view rest = token;
      while (!rest.empty()) {
        const bool marked = rest.starts_with(mark);
        if (!marked) {
          text += rest.front();
        } else if (!first || !prepends) {
          text += ' ';
        }
        rest.remove_prefix(marked ? mark.size() : 1);
      }
      first = false;
    }
    return text;
  };
}

}  // namespace

Decoder decoder_of(const Component& component) {
  const auto type = component.type();
  if (type == "ByteLevel") {
    return from_bytes;
  }
  if (type == "Metaspace") {
    return metaspace_decoder(component);
  }
  component.refuse("a decoder of ByteLevel and Metaspace", type);
}

}  // namespace sherd::data
