// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/utf8.h"
#include "support/scratch_folder.h"
#include "support/working_directory.h"

namespace sherd::data {
namespace {

using sherd::testing::ScratchFolder;
using sherd::testing::WorkingDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string byte_token(unsigned char byte) {
  std::string token;
  append_character(character_of_byte(byte), token);
  return token;
}

// Ids 0 to 255 are the bytes; "he" is 256, "hel" 257, "ll" 258, "llo" 259 and <end> 260.
Json byte_level() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[byte_token(static_cast<unsigned char>(byte))] = byte;
  }
  vocab["he"] = 256;
  vocab["hel"] = 257;
  vocab["ll"] = 258;
  vocab["llo"] = 259;
  return {
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens",
       {{{"id", 260}, {"content", "<end>"}, {"special", true}}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"h e", "l l", "he l", Json::array({"ll", "o"})}}}}};
}

Json unigram() {
  return {
      {"pre_tokenizer",
       {{"type", "Metaspace"},
        {"replacement", "\u2581"},
        {"prepend_scheme", "always"}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 0},
        {"vocab",
         Json::array(
             {Json::array({"<unk>", 0.0}), Json::array({"\u2581", -3.0}),
              Json::array({"a", -2.0}), Json::array({"b", -2.5}),
              Json::array({"ab", -4.0}), Json::array({"\u2581a", -4.2})})}}}};
}

class TokenizerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> load(const Json& json) {
    folder_.file("tokenizer.json", json.dump());
    return load_tokenizer(folder_.path());
  }

  std::string refusal(const Json& json) {
    try {
      load(json);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  ScratchFolder folder_;
};

TEST_F(TokenizerTest, MergesInTheOrderOfTheirRanks) {
  const auto tokenizer = load(byte_level());
  // "l l" comes before "he l", so "hel" is never formed here.
  EXPECT_THAT(tokenizer->encode("hello"), ElementsAre(256, 259));
  EXPECT_THAT(tokenizer->encode("help"), ElementsAre(257, 'p'));
  EXPECT_THAT(tokenizer->encode("lll"), ElementsAre(258, 'l'));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre());
  EXPECT_EQ(tokenizer->vocab_size(), 261);
}

TEST_F(TokenizerTest, IgnoreMergesTakesAPieceThatIsAToken) {
  auto json = byte_level();
  json["model"]["vocab"]["hello"] = 261;
  EXPECT_THAT(load(json)->encode("hello"), ElementsAre(256, 259));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(load(json)->encode("hello"), ElementsAre(261));
  EXPECT_THAT(load(json)->encode("hellos"), ElementsAre(256, 259, 's'));
}

TEST_F(TokenizerTest, AddedTokensAreCutOutAndTheLongestCounts) {
  auto json = byte_level();
  json["added_tokens"].push_back(
      {{"id", 261}, {"content", "<end>>"}, {"special", true}});
  json["added_tokens"].push_back(
      {{"id", 262},
       {"content", "[m]"},
       {"special", true},
       {"lstrip", true},
       {"rstrip", true}});
  const auto tokenizer = load(json);
  EXPECT_THAT(tokenizer->encode("he<end>he"), ElementsAre(256, 260, 256));
  EXPECT_THAT(tokenizer->encode("<end>>>"), ElementsAre(261, '>'));
  EXPECT_THAT(tokenizer->encode("a \n[m]\u2003b"), ElementsAre('a', 262, 'b'));
}

TEST_F(TokenizerTest, DecodesWhatItEncodesAndShowsCutCharacters) {
  const auto tokenizer = load(byte_level());
  const std::string text = "hello, h\u00e9llo \u4f60\u597d \U0001f642\n<end>";
  const auto ids = tokenizer->encode(text);
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_EQ(tokenizer->decode({0xC3}), "\uFFFD");
  EXPECT_THROW(tokenizer->decode({261}), Error);
  EXPECT_THROW(tokenizer->decode({-1}), Error);
}

TEST_F(TokenizerTest, BytesThatAreNotUtf8CountAsReplacementCharacters) {
  const auto tokenizer = load(byte_level());
  EXPECT_EQ(
      tokenizer->encode("a\xFF\xC3z"), tokenizer->encode("a\uFFFD\uFFFDz"));
}

TEST_F(TokenizerTest, UnigramTakesTheBestSum) {
  const auto tokenizer = load(unigram());
  // "\u2581a" + "b" = -6.7 beats "\u2581" + "ab" = -7 and three single tokens.
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(5, 3));
  EXPECT_THAT(tokenizer->encode("ab b"), ElementsAre(5, 3, 1, 3));
  // Adjacent unknown characters become one token.
  EXPECT_THAT(tokenizer->encode("xyb"), ElementsAre(1, 0, 3));
  EXPECT_EQ(tokenizer->decode({5, 3, 1, 3}), "ab b");
}

TEST_F(TokenizerTest, SpecialTokensComeFromTheirFiles) {
  auto json = byte_level();
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<end>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<end>", {{"ids", {260}}}}}}};
  folder_.file(
      "tokenizer_config.json", R"({"eos_token": {"content": "<end>"}})");
  folder_.file("special_tokens_map.json", R"({"bos_token": "<end>"})");
  const auto special = load(json)->special();
  EXPECT_EQ(special.eos, 260);
  EXPECT_EQ(special.bos, 260);
  EXPECT_THAT(special.before, ElementsAre(260));
  EXPECT_THAT(special.after, ElementsAre());
}

TEST_F(TokenizerTest, WhatIsNotSupportedIsRefusedByItsName) {
  const auto with = [](const char* part, const Json& value) {
    auto json = byte_level();
    json[part] = value;
    return json;
  };
  EXPECT_THAT(
      refusal(with("normalizer", {{"type", "Lowercase"}})),
      AllOf(
          HasSubstr("tokenizer.json: normalizer"),
          HasSubstr("found Lowercase")));
  EXPECT_THAT(
      refusal(with(
          "pre_tokenizer",
          {{"type", "Sequence"},
           {"pretokenizers", {{{"type", "BertPreTokenizer"}}}}})),
      AllOf(
          HasSubstr("pre_tokenizer.pretokenizers[0]"),
          HasSubstr("found BertPreTokenizer")));
  EXPECT_THAT(refusal(with("decoder", nullptr)), HasSubstr("found null"));
  EXPECT_THAT(
      refusal(with("model", {{"type", "WordPiece"}})),
      HasSubstr("found WordPiece"));
  EXPECT_THAT(
      refusal(with("pre_tokenizer", nullptr)),
      HasSubstr("expected ByteLevel as the last pre-tokenizer"));
  auto fallback = byte_level();
  fallback["model"]["byte_fallback"] = true;
  EXPECT_THAT(refusal(fallback), HasSubstr("byte_fallback true"));
  auto word = byte_level();
  word["added_tokens"][0]["single_word"] = true;
  EXPECT_THAT(
      refusal(word),
      AllOf(HasSubstr("added_tokens[0]"), HasSubstr("single_word true")));
}

TEST_F(TokenizerTest, DamageIsRefusedNamingTheFile) {
  EXPECT_THAT(
      [&] { load_tokenizer(folder_.path() + "/none"); },
      ::testing::ThrowsMessage<Error>(
          HasSubstr("with a tokenizer.json, found none")));
  auto no_byte = byte_level();
  no_byte["model"]["vocab"].erase(byte_token(0x07));
  EXPECT_THAT(refusal(no_byte), HasSubstr("none for byte 7"));
  auto merge = byte_level();
  merge["model"]["merges"].push_back("h x");
  EXPECT_THAT(
      refusal(merge), AllOf(HasSubstr("merges[4]"), HasSubstr("\"hx\"")));
  merge["model"]["merges"][4] = "h x y";
  EXPECT_THAT(refusal(merge), HasSubstr("expected a merge of two tokens"));
  auto id = byte_level();
  id["model"]["vocab"]["hello"] = 1LL << 40;
  EXPECT_THAT(refusal(id), HasSubstr("expected ids in [0,"));
  EXPECT_THAT(
      refusal(Json::object()), HasSubstr("expected the JSON of a tokenizer"));
  const auto whole = byte_level().dump();
  for (std::size_t cut = 0; cut < whole.size(); cut += 97) {
    folder_.file("tokenizer.json", whole.substr(0, cut));
    EXPECT_THROW(load_tokenizer(folder_.path()), Error) << cut;
  }
}

TEST(ByteTokenizer, BytesAreIds) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_THAT(tokenizer->encode("a\xFF"), ElementsAre('a', 255));
  EXPECT_EQ(tokenizer->decode({'a', 255}), "a\uFFFD");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_THROW(tokenizer->decode({256}), Error);
}

TEST_F(TokenizerTest, BytesStayBytesBesideATokenizer) {
  const auto bytes = bytes_digest();
  load(byte_level());
  const WorkingDirectory in(folder_.path());
  EXPECT_EQ(bytes_digest(), bytes);
  EXPECT_EQ(byte_tokenizer()->digest(), bytes);
}

TEST_F(TokenizerTest, AnEmptyFolderIsTheWorkingDirectory) {
  load(byte_level());
  const WorkingDirectory in(folder_.path());
  EXPECT_EQ(tokenizer_file(""), "tokenizer.json");
  EXPECT_EQ(load_tokenizer("")->digest(), tokenizer_digest(folder_.path()));
  EXPECT_EQ(tokenizer_digest(""), tokenizer_digest(folder_.path()));
}

TEST(Utf8, RepairsMaximalParts) {
  EXPECT_EQ(repaired_utf8("a\xE2\x82z"), "a\uFFFDz");
  EXPECT_EQ(repaired_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired_utf8("\xF0\x9F\x99\xC0\xAF"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repaired_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
  const std::string good = "plain \u00e9 \u4f60 \U0001f642 \U0010FFFF";
  EXPECT_EQ(repaired_utf8(good), good);
  EXPECT_EQ(first_invalid_utf8("0123456789\xFF"), 10U);
}

TEST(Utf8, CharactersAreWhatTheyWereMadeOf) {
  for (const std::uint32_t c : {0x41U, 0x7FFU, 0x800U, 0xFFFDU, 0x10FFFFU}) {
    std::string text;
    append_character(c, text);
    EXPECT_EQ(character_at(text, 0), c);
    EXPECT_EQ(character_bytes(text, 0), text.size());
  }
}

std::string base64(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += 6) {
    std::size_t digit = 0;
    for (std::size_t i = bit; i < bit + 6; ++i) {
      const auto byte =
          i / 8 < bytes.size() ? static_cast<unsigned char>(bytes[i / 8]) : 0;
      digit = 2 * digit + ((byte >> (7 - i % 8)) & 1U);
    }
    text += kDigits[digit];
  }
  return text;
}

TEST(Charsmap, GivesUtf8EvenIfItsTextsAreNot) {
  // A trie in which "a" leads to the text at offset 0. See darts-clone for its units.
  std::vector<std::uint32_t> units(98);
  units['a'] = (1U << 10U) | (1U << 8U) | 'a';
  const auto trie_bytes = static_cast<std::uint32_t>(4 * units.size());
  std::string bytes(reinterpret_cast<const char*>(&trie_bytes), 4);
  bytes.append(reinterpret_cast<const char*>(units.data()), trie_bytes);
  const Charsmap map(base64(bytes + std::string("\xE2\x82\0", 3)), "here");
  EXPECT_EQ(map.normalize("bab"), "b\uFFFDb");
  const Charsmap good(base64(bytes + std::string("e\0", 2)), "here");
  EXPECT_EQ(good.normalize("bab"), "beb");
}

TEST(Regex, MatchesAreNotEmptyAndSpacesAreUnicodes) {
  const Regex spaces("\\s|x*", "test");
  const auto match = spaces.find("\u00e9\u2003", 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 2U);
  EXPECT_FALSE(Regex("\\s", "test").find("\u180E", 0));
  EXPECT_TRUE(Regex("[^\\sa]", "test").find("a\u180E", 0));
}

TEST(Regex, DoesNotMatchPartsOfCharacters) {
  EXPECT_THROW(Regex("\\C", "here"), Error);
}

TEST(Regex, RefusesWhatItCannotRead) {
  EXPECT_THROW(Regex("(", "test"), Error);
  EXPECT_THROW(Regex("[\\S]", "test"), Error);
  EXPECT_THROW(Regex("[a&&b]", "test"), Error);
}

TEST(Regex, QuotedTextMatchesItselfOnly) {
  const std::string text = "<|a.b*[\\s]|>\\E";
  const Regex regex(quoted_pattern(text), "test");
  const auto match = regex.find("x" + text, 0);
  ASSERT_TRUE(match);
  EXPECT_EQ(match->end - match->begin, text.size());
}

}  // namespace
}  // namespace sherd::data
