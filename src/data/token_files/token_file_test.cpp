// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/data/token_file.h>
#include <sherd/data/tokenizer.h>
#include "base/digest.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::data {
namespace {

using sherd::testing::ScratchFolder;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Documents = std::vector<std::vector<std::int64_t>>;

void write(
    const std::string& path,
    const Documents& documents,
    const TokenFileOptions& options) {
  TokenFileWriter writer(path, options);
  for (const auto& document : documents) {
    writer.add(document);
  }
  writer.finish();
}

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string refusal(const std::string& path) {
  try {
    const TokenFile file(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TokenFile, GivesBackTheDocumentsThatWereWritten) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  const Documents documents = {{1, 2, 3}, {}, {65535}};
  write(path, documents, {.vocabulary = 65536, .tokenizer_digest = 77});
  const TokenFile file(path);
  EXPECT_EQ(file.documents(), 3);
  EXPECT_EQ(file.tokens(), 4);
  EXPECT_EQ(file.vocabulary(), 65536);
  EXPECT_EQ(file.tokenizer_digest(), 77U);
  EXPECT_EQ(file.id_bytes(), 2);
  for (std::size_t i = 0; i < documents.size(); ++i) {
    EXPECT_EQ(file.document(static_cast<std::int64_t>(i)), documents[i]);
  }
  EXPECT_THROW(file.document(3), Error);
  EXPECT_THROW(file.document(-1), Error);
  EXPECT_NO_THROW(file.verify());
}

TEST(TokenFile, LargeVocabulariesTakeFourBytes) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{70000}, {1}}, {.vocabulary = 128256});
  const TokenFile file(path);
  EXPECT_EQ(file.id_bytes(), 4);
  EXPECT_THAT(file.document(0), ElementsAre(70000));
  EXPECT_THAT(file.document(1), ElementsAre(1));
}

// Other programs read the file by the table in docs/design/data.md.
TEST(TokenFile, HasTheDocumentedLayout) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{258}, {3, 4}}, {.vocabulary = 300});
  const auto bytes = content(path);
  ASSERT_EQ(bytes.size(), 64U + 8U + 3U * 8U);
  EXPECT_EQ(bytes.substr(0, 8), "SHERDTOK");
  EXPECT_EQ(bytes.substr(8, 8), std::string("\1\0\0\0\2\0\0\0", 8));
  EXPECT_EQ(bytes.substr(64, 8), std::string("\2\1\3\0\4\0\0\0", 8));
  std::uint64_t offsets[3] = {};
  std::memcpy(offsets, bytes.data() + 72, sizeof(offsets));
  EXPECT_THAT(offsets, ElementsAre(0, 1, 3));
}

TEST(TokenFile, AppearsWholeOrNotAtAll) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  {
    TokenFileWriter writer(path, {.vocabulary = 10});
    writer.add({1});
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_THROW(writer.add({10}), Error);
    EXPECT_THROW(writer.add({-1}), Error);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(TokenFileWriter(path, {.vocabulary = 0}), Error);
  EXPECT_THROW(
      TokenFileWriter(folder.path() + "/none/a.tokens", {.vocabulary = 1}),
      Error);
}

TEST(TokenFile, HasOneWriterAtATime) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  {
    TokenFileWriter writer(path, {.vocabulary = 10});
    writer.add({1});
    EXPECT_THAT(
        error_of([&] { TokenFileWriter(path, {.vocabulary = 10}); }),
        HasSubstr("a.tokens: expected one writer at a time, found another"));
    writer.add({2});
    writer.finish();
    // The first one has ended.
    TokenFileWriter(path, {.vocabulary = 10});
  }
  const TokenFile file(path);
  EXPECT_EQ(file.documents(), 2);
  EXPECT_NO_THROW(file.verify());
}

TEST(TokenFile, ReplacesWhatAKilledWriterLeft) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  folder.file("a.tokens.partial", std::string(1000, 'x'));
  write(path, {{1}}, {.vocabulary = 10});
  EXPECT_NO_THROW(TokenFile(path).verify());
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(TokenFile, IsFinishedOnce) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  TokenFileWriter writer(path, {.vocabulary = 10});
  writer.add({1, 2});
  writer.finish();
  const auto finished = content(path);
  EXPECT_THAT(
      error_of([&] { writer.finish(); }),
      HasSubstr(path + ": expected finish() once, found a second call"));
  EXPECT_THAT(
      error_of([&] { writer.add({1}); }),
      HasSubstr("expected no document after finish(), found one"));
  EXPECT_EQ(content(path), finished);
}

TEST(TokenFile, EveryCutAndEveryDamagedHeaderIsRefused) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{1, 2}, {3}}, {.vocabulary = 10});
  const auto whole = content(path);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(TokenFile(folder.file("cut", whole.substr(0, size))), Error)
        << size;
  }
  for (std::size_t i = 0; i < 64; ++i) {
    auto damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_THROW(TokenFile(folder.file("damaged", damaged)), Error) << i;
  }
  EXPECT_THAT(
      refusal(folder.file("text", std::string(100, 'x'))),
      AllOf(HasSubstr("/text"), HasSubstr("starts with SHERDTOK")));
  EXPECT_THAT(
      refusal(folder.file("long", whole + "x")),
      HasSubstr("expected 96 bytes, found 97"));
  EXPECT_THAT(refusal(folder.path() + "/none"), HasSubstr("/none"));
}

TEST(TokenFile, CountsThatNoFileHasAreRefusedDespiteTheirDigest) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{1, 2}, {3}}, {.vocabulary = 10});
  const auto forged = [&](std::size_t at, char value) {
    auto bytes = content(path);
    bytes[at] = value;
    const auto digest = digest_of(bytes.data(), 56);
    std::memcpy(bytes.data() + 56, &digest, sizeof(digest));
    return refusal(folder.file("forged", bytes));
  };
  EXPECT_THAT(forged(12, 8), HasSubstr("ids of 2 or 4 bytes, found 8"));
  EXPECT_THAT(forged(23, 0x7f), HasSubstr("no more tokens and documents"));
  EXPECT_THAT(forged(31, 0x20), HasSubstr("no more tokens and documents"));
  EXPECT_THAT(forged(39, 1), HasSubstr("a vocabulary in [1, 2147483648]"));
}

TEST(TokenFile, VerifyFindsAChangedId) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{1, 2}, {3}}, {.vocabulary = 10});
  auto bytes = content(path);
  bytes[66] = 7;
  const TokenFile file(folder.file("changed.tokens", bytes));
  EXPECT_THROW(file.verify(), Error);
}

TEST(TokenFile, VerifyFindsAChangedOffset) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a.tokens";
  write(path, {{1, 2}, {3}}, {.vocabulary = 10});
  EXPECT_NO_THROW(TokenFile(path).verify());
  const auto bytes = content(path);
  constexpr std::size_t kOffsets = 64 + 8;  // The header, and padded ids.
  for (const auto& [place, value] :
       {std::pair<std::size_t, int>{0, 1}, {8, 4}, {16, 2}}) {
    auto changed = bytes;
    changed[kOffsets + place] = static_cast<char>(value);
    const TokenFile file(folder.file("changed.tokens", changed));
    EXPECT_THAT(
        error_of([&] { file.verify(); }),
        HasSubstr("expected documents that begin at token 0"))
        << place;
  }
}

TEST(TokenizerFiles, AreCopiedOverThoseThatAreThere) {
  const ScratchFolder from;
  const ScratchFolder to;
  from.file("tokenizer.json", "new");
  from.file("chat_template.jinja", "chat");
  from.file("model.safetensors", "weights");
  to.file("tokenizer.json", "old");
  copy_tokenizer(from.path(), to.path());
  copy_tokenizer(to.path(), to.path());
  EXPECT_EQ(content(tokenizer_file(to.path())), "new");
  EXPECT_EQ(content(to.path() + "/chat_template.jinja"), "chat");
  EXPECT_FALSE(std::filesystem::exists(to.path() + "/model.safetensors"));
  EXPECT_EQ(tokenizer_file(to.path() + "/none"), "");
  EXPECT_THROW(copy_tokenizer(from.path(), from.path() + "/none"), Error);
}

}  // namespace
}  // namespace sherd::data
