// SPDX-License-Identifier: Apache-2.0
#include "generate/text_stream.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <gtest/gtest.h>
#include "terminal_text.h"

namespace sherd::tools {
namespace {

const std::string kCut = "\xEF\xBF\xBD";  // U+FFFD.

// Bytes are tokens, and texts that end in the middle of a character are decoded according to the
// map.
class ByteTokens : public data::Tokenizer {
 public:
  explicit ByteTokens(std::map<std::string, std::string> decoded)
      : decoded_(std::move(decoded)) {}

  std::vector<std::int64_t> encode(std::string_view text) override {
    std::vector<std::int64_t> ids;
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids) const override {
    const std::string bytes(ids.begin(), ids.end());
    const auto found = decoded_.find(bytes);
    return found == decoded_.end() ? bytes : found->second;
  }
  std::int64_t vocab_size() const override { return 256; }
  const data::SpecialTokens& special() const override { return special_; }
  std::uint64_t digest() const override { return 0; }

 private:
  const std::map<std::string, std::string> decoded_;
  const data::SpecialTokens special_;
};

// The pieces, each followed by "|", and what finish() adds.
std::string pieces_of(
    const std::string& prompt,
    const std::string& text,
    const std::map<std::string, std::string>& decoded = {}) {
  ByteTokens tokenizer(decoded);
  TextStream stream(tokenizer, tokenizer.encode(prompt));
  std::string shown;
  for (const auto id : tokenizer.encode(text)) {
    shown += stream.add(id) + "|";
  }
  return shown + stream.finish();
}

TEST(TextStream, ShowsEachTokenAsItComes) {
  EXPECT_EQ(pieces_of("ab", "cd\n"), "c|d|\n|");
  EXPECT_EQ(pieces_of("", "x"), "x|");
}

TEST(TextStream, TokensThatTheTokenizerLacksHaveNoText) {
  ByteTokens tokenizer({});
  TextStream stream(tokenizer, tokenizer.encode("a"));
  EXPECT_EQ(stream.add(256), "");
  EXPECT_EQ(stream.add('b'), "b");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.ids().size(), 3U);
}

TEST(TextStream, WaitsForTheRestOfACharacter) {
  EXPECT_EQ(
      pieces_of("a", "\xC3\xA9!", {{"a\xC3", "a" + kCut}}), "|\xC3\xA9|!|");
  EXPECT_EQ(
      pieces_of(
          "", "\xF0\x9F\x8C\x8A-",
          {{"\xF0", kCut}, {"\xF0\x9F", kCut}, {"\xF0\x9F\x8C", kCut + kCut}}),
      "|||\xF0\x9F\x8C\x8A|-|");
}

TEST(TextStream, ShowsAtTheEndWhatNeverBecameACharacter) {
  EXPECT_EQ(pieces_of("a", "b\xE2", {{"ab\xE2", "ab" + kCut}}), "b||" + kCut);
  // No character waits for more than three bytes.
  std::map<std::string, std::string> decoded;
  std::string cuts;
  std::string four;
  for (std::size_t count = 1; count <= 5; ++count) {
    cuts += kCut;
    decoded[std::string(count, '\xFF')] = cuts;
    four = count == 4 ? cuts : four;
  }
  EXPECT_EQ(
      pieces_of("", std::string(5, '\xFF'), decoded),
      "|||" + four + "|" + kCut + "|");
}

TEST(TextStream, NothingReachesATerminalThatItWouldObey) {
  EXPECT_EQ(
      printable_on_terminal("a\x1b[2J\nb\tc\x7f\xC3\xA9"),
      "a?[2J\nb\tc?\xC3\xA9");
}

}  // namespace
}  // namespace sherd::tools
