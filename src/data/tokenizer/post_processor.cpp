// SPDX-License-Identifier: Apache-2.0
#include <string>
#include "data/tokenizer/stages.h"

namespace sherd::data {
namespace {

void read_template(const Component& component, SpecialTokens& to) {
  const auto& tokens = component.json.at("special_tokens");
  auto* side = &to.before;
  for (const auto& item : component.json.at("single")) {
    if (item.contains("Sequence")) {
      side = &to.after;
      continue;
    }
    const std::string name = item.at("SpecialToken").at("id");
    for (const auto& id : tokens.at(name).at("ids")) {
      side->push_back(id);
    }
  }
}

}  // namespace

void read_post_processor(const Component& component, SpecialTokens& to) {
  for_each_component(component, "processors", [&](const Component& each) {
    const auto type = each.type();
    if (type == "TemplateProcessing") {
      read_template(each, to);
    } else if (type == "RobertaProcessing" || type == "BertProcessing") {
      to.before = {each.json.at("cls").at(1).get<std::int64_t>()};
      to.after = {each.json.at("sep").at(1).get<std::int64_t>()};
    } else if (type != "ByteLevel") {  // It only moves offsets.
      each.refuse(
          "a post-processor of BertProcessing, ByteLevel, RobertaProcessing, "
          "Sequence and TemplateProcessing",
          type);
    }
  });
}

}  // namespace sherd::data
