// SPDX-License-Identifier: Apache-2.0
#include <sherd/data/corpus.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include "support/scratch_folder.h"

namespace sherd::data {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::int64_t> all(const Corpus& corpus) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(corpus.tokens()));
  corpus.copy(0, corpus.tokens(), ids.data());
  return ids;
}

std::string text(const Corpus& corpus) {
  const auto ids = all(corpus);
  return {ids.begin(), ids.end()};
}

std::string refusal(
    const std::string& path, const CorpusOptions& options = {}) {
  try {
    const Corpus corpus(path, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Corpus, BytesOfAFileAreTokens) {
  const ScratchFolder folder;
  const Corpus corpus(folder.file("text", std::string("a\xff\0z", 4)));
  EXPECT_EQ(corpus.vocabulary(), 256);
  EXPECT_EQ(all(corpus), (std::vector<std::int64_t>{'a', 255, 0, 'z'}));
  EXPECT_EQ(corpus.tokenizer_digest(), tokenizer_digest(folder.path()));
}

TEST(Corpus, AFolderIsItsFilesInPathOrder) {
  const ScratchFolder folder;
  folder.file("b.txt", "3");
  folder.file("a/y", "2");
  folder.file("a/B", "1");  // Byte order: capitals first, in every locale.
  folder.file("empty", "");
  folder.file("z.bin", "4");  // Read as bytes, like the other files.
  EXPECT_EQ(text(Corpus(folder.path())), "1234");
}

TEST(Corpus, APartOfAPreparedFolderIsNoText) {
  for (const std::string part :
       {"train.tokens.partial", "validation.tokens",
        "validation.tokens.partial", "prepared.json"}) {
    const ScratchFolder folder;
    folder.file(part, "text");
    folder.file("tokenizer.json", "{}");
    EXPECT_THAT(
        refusal(folder.path()),
        HasSubstr(
            folder.path() + ": expected train.tokens beside " + part +
            ", found none; is `sherd data prepare` still running"));
  }
}

std::ptrdiff_t mappings() {
  std::ifstream maps("/proc/self/maps");
  return std::count(
      std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(),
      '\n');
}

// A process may have 65530 mappings.
TEST(Corpus, AFolderOfVeryManySmallFilesTakesFewMappings) {
  const ScratchFolder folder;
  constexpr int kFiles = 17000;
  std::string expected;
  for (int i = 0; i < kFiles; ++i) {
    const auto name = std::to_string(100000 + i);
    folder.file(name, name);
    expected += name;
  }
  const auto before = mappings();
  const Corpus corpus(folder.path());
  EXPECT_LT(mappings() - before, 1000);
  EXPECT_EQ(text(corpus), expected);
}

TEST(Corpus, LinksToFilesAndFoldersCountAndBrokenOnesAreRefused) {
  const ScratchFolder folder;
  const auto target = folder.file("a", "text");
  folder.file("elsewhere/a", "more");
  std::filesystem::create_directory(folder.path() + "/data");
  std::filesystem::create_symlink(target, folder.path() + "/data/b");
  std::filesystem::create_symlink("../elsewhere", folder.path() + "/data/c");
  EXPECT_EQ(text(Corpus(folder.path() + "/data")), "textmore");
  std::filesystem::create_symlink("nowhere", folder.path() + "/data/d");
  EXPECT_THAT(
      refusal(folder.path() + "/data"),
      HasSubstr("/data/d: expected a file or folder, found a broken link"));
}

TEST(Corpus, TheByteLimitCutsInsideAFile) {
  const ScratchFolder folder;
  folder.file("1", "abc");
  folder.file("2", "def");
  folder.file("3", "ghi");
  EXPECT_EQ(text(Corpus(folder.path(), {.bytes_max = 5})), "abcde");
  EXPECT_EQ(text(Corpus(folder.path(), {.bytes_max = 6})), "abcdef");
  EXPECT_EQ(Corpus(folder.path(), {.bytes_max = 99}).tokens(), 9);
}

TEST(Corpus, ABinHoldsLittleEndianWords) {
  const ScratchFolder folder;
  const auto path =
      folder.file("ids.bin", std::string("\x01\x00\x00\x02\xff\x00", 6));
  const Corpus corpus(path);
  EXPECT_EQ(all(corpus), (std::vector<std::int64_t>{1, 512, 255}));
  EXPECT_EQ(corpus.vocabulary(), 513);  // The largest id + 1.
  EXPECT_EQ(Corpus(path, {.vocabulary = 50257}).vocabulary(), 50257);
  EXPECT_EQ(Corpus(path, {.bytes_max = 5}).tokens(), 2);
  EXPECT_EQ(corpus.tokenizer_digest(), 0U);  // A `.bin` does not say.
}

TEST(Corpus, AFolderOfBinsHoldsWords) {
  const ScratchFolder folder;
  folder.file("1.bin", std::string("\x01\x00", 2));
  folder.file("2.bin", std::string("\x02\x00", 2));
  EXPECT_EQ(all(Corpus(folder.path())), (std::vector<std::int64_t>{1, 2}));
}

TEST(Corpus, RangesCrossFiles) {
  const ScratchFolder folder;
  std::string whole;
  for (int i = 0; i < 26; ++i) {
    const std::string part(static_cast<std::size_t>(i % 4), char('a' + i));
    folder.file(std::string(1, char('a' + i)), part);
    whole += part;
  }
  const Corpus corpus(folder.path());
  ASSERT_EQ(text(corpus), whole);
  for (std::size_t first = 0; first <= whole.size(); ++first) {
    for (std::size_t count = 0; first + count <= whole.size(); ++count) {
      std::vector<std::int64_t> ids(count);
      corpus.copy(
          static_cast<std::int64_t>(first), static_cast<std::int64_t>(count),
          ids.data());
      const std::string found(ids.begin(), ids.end());
      ASSERT_EQ(found, whole.substr(first, count));
    }
  }
}

TEST(Corpus, RangesOutsideAreRefused) {
  const ScratchFolder folder;
  const Corpus corpus(folder.file("text", "abcdef"));
  std::vector<std::int64_t> ids(8);
  EXPECT_THROW(corpus.copy(-1, 2, ids.data()), Error);
  EXPECT_THROW(corpus.copy(5, 2, ids.data()), Error);
  EXPECT_THROW(corpus.copy(7, 0, ids.data()), Error);
  EXPECT_THROW(corpus.copy(0, -1, ids.data()), Error);
}

TEST(Corpus, TheHashIsOfTheTokensNotTheFiles) {
  const ScratchFolder folder;
  const std::string whole = "The quick brown fox jumps over the lazy dog.";
  const auto hash = Corpus(folder.file("one", whole)).hash();
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    folder.file("two/1", whole.substr(0, cut));
    folder.file("two/2", whole.substr(cut));
    ASSERT_EQ(Corpus(folder.path() + "/two").hash(), hash) << cut;
  }
  EXPECT_EQ(hash, 4187230479961664674ULL);  // The same on every machine.
}

TEST(Corpus, TheHashSeesEveryByteAndTheLength) {
  const ScratchFolder folder;
  const std::string whole(23, 'x');
  const auto hash = Corpus(folder.file("one", whole)).hash();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] = 'y';
    EXPECT_NE(Corpus(folder.file("two", changed)).hash(), hash) << i;
  }
  EXPECT_NE(
      Corpus(folder.file("two", whole + std::string(1, '\0'))).hash(), hash);
  // The same bytes read as ids are another text.
  EXPECT_NE(
      Corpus(folder.file("4", "abcd")).hash(),
      Corpus(folder.file("4.bin", "abcd")).hash());
}

TEST(Corpus, RefusalsNamePathExpectedAndFound) {
  const ScratchFolder folder;
  const auto missing = folder.path() + "/missing";
  EXPECT_THAT(
      refusal(missing),
      AllOf(
          HasSubstr(missing), HasSubstr("expected a file or folder"),
          HasSubstr("found nothing")));
  const auto empty = folder.file("empty", "");
  EXPECT_THAT(
      refusal(empty), AllOf(HasSubstr(empty), HasSubstr("found 0 tokens")));
  const auto odd = folder.file("odd.bin", "abc");
  EXPECT_THAT(
      refusal(odd),
      AllOf(HasSubstr(odd), HasSubstr("even number of bytes, found 3")));
  const auto large =
      folder.file("large.bin", std::string("\x07\x00\x0a\x00", 4));
  EXPECT_THAT(
      refusal(large, {.vocabulary = 10}),
      AllOf(
          HasSubstr(large), HasSubstr("below the vocabulary 10"),
          HasSubstr("found 10 at token 1")));
  const auto bytes = folder.file("bytes", "a\x80");
  EXPECT_THAT(
      refusal(bytes, {.vocabulary = 128}), HasSubstr("found 128 at token 1"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("expected a regular file"));
  EXPECT_THAT(
      refusal(bytes, {.bytes_max = -1}), HasSubstr("at least 0, found -1"));
}

TEST(Corpus, AnEmptyFolderIsRefused) {
  const ScratchFolder folder;
  EXPECT_THAT(
      refusal(folder.path()),
      AllOf(HasSubstr(folder.path()), HasSubstr("found none")));
}

}  // namespace
}  // namespace sherd::data
