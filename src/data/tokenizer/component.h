// SPDX-License-Identifier: Apache-2.0
//
// Component is a part of a tokenizer.json together with its place there, for messages. Thread rule:
// a value; it refers to the JSON, which must outlive it.
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

  // Throws json::exception if there is no such field.
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

  // Throws Error if the field exists, is not null and differs from the only supported value.
  void expect(const char* name, const nlohmann::json& wanted) const {
    if (json.contains(name) && !json[name].is_null() && json[name] != wanted) {
      refuse(
          std::string(name) + " " + wanted.dump(),
          std::string(name) + " " + json[name].dump());
    }
  }
};

// Calls `each` for this component or, if it is a sequence, {"type": "Sequence", LIST: [...]}, for
// its components.
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
