// SPDX-License-Identifier: Apache-2.0
//
// Component is a part of a tokenizer.json, together with where it stands there, for messages.
// Thread rule: a value; it refers to the JSON, which must outlive it.
#pragma once

#include <cstddef>
#include <string>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::data {

struct Component {
  const nlohmann::json& json;
  std::string where;  // "FOLDER/tokenizer.json: pre_tokenizer".

  bool present() const { return !json.is_null(); }
  std::string type() const { return present() ? json.at("type") : "null"; }

  // Throws json::exception when there is no such field.
  Component field(const char* name) const {
    return {json.at(name), where + "." + name};
  }
  Component item(std::size_t index) const {
    return {json.at(index), where + "[" + std::to_string(index) + "]"};
  }

  [[noreturn]] void refuse(
      const std::string& expected, const std::string& found) const {
    throw Error(where + ": expected " + expected + ", found " + found);
  }

  // Refuses a field that is there, not null and something else than the only value supported.
  void expect(const char* name, const nlohmann::json& wanted) const {
    if (json.contains(name) && !json[name].is_null() && json[name] != wanted) {
      refuse(
          std::string(name) + " " + wanted.dump(),
          std::string(name) + " " + json[name].dump());
    }
  }
};

// `each` for this component, or for those of a sequence: {"type": "Sequence", LIST: [...]}.
template <typename Function>
void for_each_component(
    const Component& component, const char* list, const Function& each) {
  if (!component.present()) {
    return;
  }
  if (component.type() != "Sequence") {
    each(component);
    return;
  }
  const auto items = component.field(list);
  for (std::size_t i = 0; i < items.json.size(); ++i) {
    for_each_component(items.item(i), list, each);
  }
}

}  // namespace sherd::data
