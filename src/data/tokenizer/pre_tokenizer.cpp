// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>
#include "base/check.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/stages.h"

namespace sherd::data {
namespace {

// GPT-2 was trained with this pattern, and ByteLevel means it by "use_regex".
constexpr const char* kByteLevelPattern =
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";

// What happens to the matches of a pattern or, with "invert", to the text between them.
enum class MatchBehavior { kIsolate, kRemove };

struct Split {
  Regex pattern;
  MatchBehavior matches = MatchBehavior::kIsolate;
  MatchBehavior others = MatchBehavior::kIsolate;

  void cut(std::string_view text, const PieceSink& sink) const {
    const auto add = [&](std::size_t begin, std::size_t end, auto behavior) {
      if (end > begin && behavior == MatchBehavior::kIsolate) {
        sink({text.substr(begin, end - begin)});
      }
    };
    std::size_t done = 0;
    while (const auto match = pattern.find(text, done)) {
      add(done, match->begin, others);
      add(match->begin, match->end, matches);
      done = match->end;
    }
    add(done, text.size(), others);
  }
};

PieceStep split_step(Split split) {
  const auto shared = std::make_shared<const Split>(std::move(split));
  return [shared](const Piece& piece, const PieceSink& sink) {
    shared->cut(piece.text, sink);
  };
}

PieceStep split_step_of(const Component& component) {
  const std::string behavior = component.json.at("behavior");
  if (behavior != "Isolated" && behavior != "Removed") {
    component.refuse("behavior Isolated or Removed", "behavior " + behavior);
  }
  Split split{.pattern = pattern_of(component.field("pattern"))};
  if (behavior == "Removed") {
    (component.json.value("invert", false) ? split.others : split.matches) =
        MatchBehavior::kRemove;
  }
  return split_step(std::move(split));
}

PieceStep prepend_step(const std::string& prefix) {
  return [prefix](const Piece& piece, const PieceSink& sink) {
    if (piece.text.starts_with(prefix)) {
      sink(piece);
    } else {
      sink({prefix + std::string(piece.text)});
    }
  };
}

void add_byte_level(const Component& component, PreTokenizer& to) {
  if (component.json.value("add_prefix_space", true)) {
    to.steps.push_back(prepend_step(" "));
  }
  if (component.json.value("use_regex", true)) {
    to.steps.push_back(
        split_step({.pattern = Regex(kByteLevelPattern, component.where)}));
  }
  to.has_byte_level = true;
}

std::string prepend_scheme(const Component& component) {
  if (component.json.contains("prepend_scheme")) {
    return component.json["prepend_scheme"];
  }
  return component.json.value("add_prefix_space", true) ? "always" : "never";
}

// Replaces spaces by a mark, which begins the following piece.
void add_metaspace(const Component& component, PreTokenizer& to) {
  const std::string mark = component.json.at("replacement");
  const auto scheme = prepend_scheme(component);
  if (scheme == "first" && !to.steps.empty()) {
    component.refuse(
        "prepend_scheme first of the first pre-tokenizer only",
        "another one before it");
  }
  to.steps.emplace_back(
      [mark, scheme](const Piece& piece, const PieceSink& sink) {
        std::string marked;
        for (const char c : piece.text) {
          c == ' ' ? marked += mark : marked += c;
        }
        const bool prepends =
            scheme == "always" || (scheme == "first" && piece.at_start);
        if (prepends && !marked.starts_with(mark)) {
          marked = mark + marked;
        }
        sink({marked});
      });
  if (component.json.value("split", true)) {
    const auto quoted = quoted_pattern(mark);
    to.steps.push_back(split_step(
        {.pattern = Regex(
             quoted + "?[^" + quoted + "]++|" + quoted, component.where)}));
  }
}

void add_steps(const Component& component, PreTokenizer& to) {
  const auto type = component.type();
  SHERD_CHECK(
      !to.has_byte_level, component.where,
      ": expected no pre-tokenizer after ByteLevel, found ", type);
  if (type == "ByteLevel") {
    add_byte_level(component, to);
  } else if (type == "Split") {
    to.steps.push_back(split_step_of(component));
  } else if (type == "Digits") {
    const bool one = component.json.value("individual_digits", false);
    to.steps.push_back(split_step(
        {.pattern = Regex(one ? "\\p{N}" : "\\p{N}+", component.where)}));
  } else if (type == "WhitespaceSplit") {
    to.steps.push_back(split_step(
        {.pattern = Regex("\\s+", component.where),
         .matches = MatchBehavior::kRemove}));
  } else if (type == "Metaspace") {
    add_metaspace(component, to);
  } else {
    component.refuse(
        "a pre-tokenizer of ByteLevel, Digits, Metaspace, Sequence, Split and "
        "WhitespaceSplit",
        type);
  }
}

}  // namespace

void PreTokenizer::cut(
    const Piece& piece, const PieceSink& sink, std::size_t step) const {
  if (step == steps.size()) {
    sink(piece);
    return;
  }
  if (step + 1 == steps.size()) {  // The usual case, without recursion.
    steps[step](piece, sink);
    return;
  }
  steps[step](piece, [&](const Piece& each) { cut(each, sink, step + 1); });
}

PreTokenizer pre_tokenizer_of(const Component& component) {
  PreTokenizer result;
  for_each_component(component, "pretokenizers", [&](const Component& each) {
    add_steps(each, result);
  });
  return result;
}

}  // namespace sherd::data
