// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include "base/check.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

constexpr std::size_t kStackBytesMin = 32 << 10;
constexpr std::size_t kStackBytesMax = 64 << 20;

// White space as in Unicode, for use inside [...]. PCRE2's own \s also has U+180E.
constexpr std::string_view kSpaces =
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}"
    "\\x{202F}\\x{205F}\\x{3000}";

// Translates Oniguruma's pattern for PCRE2.
std::string translated(const std::string& pattern, const std::string& where) {
  std::string result;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && (next == 's' || next == 'S')) {
      SHERD_CHECK(
          !in_class || next == 's', where, ": expected a pattern without \\S ",
          "inside of [...], found ", pattern);
      const std::string spaces(kSpaces);
      result += in_class ? spaces : (next == 's' ? "[" : "[^") + spaces + "]";
      ++i;
      continue;
    }
    SHERD_CHECK(
        !in_class || (c != '[' && !(c == '&' && next == '&')), where,
        ": expected a pattern without sets inside of [...], found ", pattern);
    if (c == '\\' && next != '\0') {
      result += c;
      result += next;
      ++i;
      continue;
    }
    in_class = in_class ? c != ']' : c == '[';
    result += c;
  }
  return result;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct Regex::Impl {
  ~Impl() {
    pcre2_match_data_free(found);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
    pcre2_code_free(code);
  }

  std::string pattern;
  std::string where;
  pcre2_code* code = nullptr;
  pcre2_match_data* found = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

Regex::Regex(const std::string& pattern, const std::string& where)
    : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  impl_->where = where;
  const auto text = translated(pattern, where);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code = pcre2_compile(
      units(text), text.size(),
      // \C would match a part of a character.
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
      &offset, nullptr);
  SHERD_CHECK(
      impl_->code != nullptr, where, ": expected a pattern, found ", pattern,
      ": ", message_of(error));
  // If PCRE2 has no compiler for this machine, it interprets patterns.
  pcre2_jit_compile(impl_->code, PCRE2_JIT_COMPLETE);
  impl_->found = pcre2_match_data_create(1, nullptr);
  impl_->context = pcre2_match_context_create(nullptr);
  impl_->stack =
      pcre2_jit_stack_create(kStackBytesMin, kStackBytesMax, nullptr);
  pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;

std::optional<Regex::Range> Regex::find(
    std::string_view text, std::size_t from) const {
  while (from < text.size()) {
    const int count = pcre2_match(
        impl_->code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
        impl_->found, impl_->context);
    if (count == PCRE2_ERROR_NOMATCH) {
      return std::nullopt;
    }
    SHERD_CHECK_AS(
        kUnavailable, count >= 0, impl_->where, ": expected to match ",
        impl_->pattern, ", found at byte ", from, ": ", message_of(count));
    const auto* at = pcre2_get_ovector_pointer(impl_->found);
    if (at[1] > at[0]) {
      return Range{at[0], at[1]};
    }
    if (at[0] >= text.size()) {
      return std::nullopt;
    }
    from = at[0] + character_bytes(text, at[0]);
  }
  return std::nullopt;
}

std::string quoted_pattern(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
        (c >= 'a' && c <= 'z') || (static_cast<unsigned char>(c) & 0x80U) != 0;
    if (!plain) {
      result += '\\';
    }
    result += c;
  }
  return result;
}

Regex pattern_of(const Component& component) {
  if (component.json.contains("String")) {
    return Regex(
        quoted_pattern(component.json["String"].get<std::string>()),
        component.where);
  }
  return Regex(component.json.at("Regex").get<std::string>(), component.where);
}

}  // namespace sherd::data
