// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utf8proc.h>
#include "base/check.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/stages.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

// Characters below U+0300 are in form NFC in any order; this byte starts the first of the other
// characters.
constexpr unsigned char kFirstToCompose = 0xCC;

std::string normal_form(std::string_view text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &mapped,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(
      mapped, &std::free);
  SHERD_CHECK_AS(
      kUnavailable, size >= 0, "[data] expected to normalize ", text.size(),
      " bytes of text, found: ", utf8proc_errmsg(size));
  return {
      reinterpret_cast<const char*>(mapped), static_cast<std::size_t>(size)};
}

std::string composed(std::string_view text) {
  const bool is_already = std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) >= kFirstToCompose;
  });
  return is_already ? std::string(text) : normal_form(text, UTF8PROC_COMPOSE);
}

TextStep form_step(int options) {
  return
      [options](std::string_view text) { return normal_form(text, options); };
}

TextStep replace_step(Regex pattern, std::string content) {
  const auto shared = std::make_shared<const Regex>(std::move(pattern));
  return [shared, content = std::move(content)](std::string_view text) {
    std::string result;
    std::size_t copied = 0;
    while (const auto match = shared->find(text, copied)) {
      result += text.substr(copied, match->begin - copied);
      result += content;
      copied = match->end;
    }
    return result.append(text.substr(copied));
  };
}

std::string stripped(std::string_view text, bool left, bool right) {
  std::size_t begin = text.size();
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto next = at + character_bytes(text, at);
    if (!is_white_space(character_at(text, at))) {
      begin = std::min(begin, at);
      end = next;
    }
    at = next;
  }
  begin = left ? begin : 0;
  end = right ? end : text.size();
  return std::string(end > begin ? text.substr(begin, end - begin) : "");
}

// SentencePiece's rule for control characters and unusual spaces.
void add_nmt_steps(const Component& component, std::vector<TextStep>& steps) {
  steps.push_back(replace_step(
      Regex(
          "[\\x01-\\x08\\x0B\\x0E-\\x1F\\x7F\\x{8F}\\x{9F}]", component.where),
      ""));
  steps.push_back(replace_step(
      Regex(
          "[\\t\\n\\f\\r\\x{1680}\\x{200B}-\\x{200F}\\x{2028}\\x{2029}\\x{2581}"
          "\\x{FEFF}\\x{FFFD}]",
          component.where),
      " "));
}

void add_steps(const Component& component, std::vector<TextStep>& steps) {
  const auto type = component.type();
  if (type == "NFC") {
    steps.emplace_back(composed);
  } else if (type == "NFKC") {
    steps.push_back(form_step(UTF8PROC_COMPOSE | UTF8PROC_COMPAT));
  } else if (type == "NFD") {
    steps.push_back(form_step(UTF8PROC_DECOMPOSE));
  } else if (type == "NFKD") {
    steps.push_back(form_step(UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT));
  } else if (type == "Nmt") {
    add_nmt_steps(component, steps);
  } else if (type == "Precompiled") {
    const auto map = std::make_shared<const Charsmap>(
        component.json.at("precompiled_charsmap").get<std::string>(),
        component.where);
    steps.emplace_back(
        [map](std::string_view text) { return map->normalize(text); });
  } else if (type == "Replace") {
    steps.push_back(replace_step(
        pattern_of(component.field("pattern")), component.json.at("content")));
  } else if (type == "Prepend") {
    steps.emplace_back(
        [prefix = component.json.at("prepend").get<std::string>()](
            std::string_view text) { return prefix + std::string(text); });
  } else if (type == "Strip") {
    const bool left = component.json.at("strip_left");
    const bool right = component.json.at("strip_right");
    steps.emplace_back([left, right](std::string_view text) {
      return stripped(text, left, right);
    });
  } else {
    component.refuse(
        "a normalizer of NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Prepend, "
        "Replace, Sequence and Strip",
        type);
  }
}

}  // namespace

std::vector<TextStep> normalizer_steps(const Component& component) {
  std::vector<TextStep> steps;
  for_each_component(component, "normalizers", [&](const Component& each) {
    add_steps(each, steps);
  });
  return steps;
}

std::string normalized(
    const std::vector<TextStep>& steps, std::string_view text) {
  std::string result(text);
  for (const auto& step : steps) {
    result = result.empty() ? result : step(result);
  }
  return result;
}

}  // namespace sherd::data
