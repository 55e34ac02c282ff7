// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/token_file.h>
#include "data/document_reader.h"
#include "data/input_files.h"
#include "data/parquet_rows.h"
#include "data/prepare.h"
#include "support/scratch_folder.h"
#include "text_file.h"

namespace sherd::tools {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> documents(
    const std::string& content, const DocumentOptions& options) {
  std::vector<std::string> found;
  for_each_document(content, "file", options, [&](std::string_view document) {
    found.emplace_back(document);
  });
  return found;
}

std::string json_refusal(const std::string& content) {
  try {
    documents(content, {.format = "jsonl"});
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Documents, AreFilesLinesParagraphsOrFieldsOfJson) {
  const std::string text = "\n \na\r\nb\n\n\t\nc\n";
  EXPECT_THAT(documents(text, {}), ElementsAre(text));
  EXPECT_THAT(documents(text, {.format = "line"}), ElementsAre("a", "b", "c"));
  EXPECT_THAT(
      documents(text, {.format = "paragraph"}), ElementsAre("a\r\nb", "c"));
  EXPECT_THAT(
      documents(
          "{\"body\": \"x\\n\"}\n\n{\"body\": \"\"}\n{\"body\": \"y\"}",
          {.format = "jsonl", .field = "body"}),
      ElementsAre("x\n", "y"));
  EXPECT_THAT(documents("", {}), ElementsAre());
}

TEST(Documents, ALineThatIsNoJsonIsRefusedByItsNumber) {
  EXPECT_THAT(
      json_refusal("{\"text\": \"a\"}\n\n{\"text\": \n"),
      AllOf(HasSubstr("file, line 3"), HasSubstr("expected a JSON object")));
  EXPECT_THAT(json_refusal("[1]"), HasSubstr("found array"));
  EXPECT_THAT(
      json_refusal("{\"body\": \"a\"}"),
      HasSubstr("expected a field \"text\" that is text, found none"));
  EXPECT_THAT(json_refusal("{\"text\": 1}"), HasSubstr("found number"));
}

TEST(Documents, TheKindComesFromTheNameUnlessItIsSaid) {
  EXPECT_EQ(document_format("auto", "a.jsonl"), "jsonl");
  EXPECT_EQ(document_format("auto", "a.txt"), "file");
  EXPECT_EQ(document_format("line", "a.jsonl"), "line");
  EXPECT_THROW(document_format("word", "a"), Error);
}

TEST(InputFiles, SaysWhyAFileIsNoText) {
  EXPECT_EQ(text_problem("text"), "");
  EXPECT_EQ(text_problem(""), "empty");
  EXPECT_EQ(text_problem(std::string("a\0b", 3)), "binary: a NUL at byte 1");
  EXPECT_EQ(text_problem("ab\xFF"), "not UTF-8 at byte 2");
}

TEST(InputFiles, TakesFoldersInPathOrderWithoutHiddenFiles) {
  const ScratchFolder folder;
  folder.file("b.txt", "b");
  folder.file("a/z.txt", "z");
  folder.file("a/x.gz", "x");
  folder.file(".git/config", "no");
  folder.file("c.parquet", "PAR1");
  const auto files = input_files({folder.path()});
  ASSERT_EQ(files.size(), 4U);
  EXPECT_EQ(files[0].path, folder.path() + "/a/x.gz");
  EXPECT_THAT(files[0].refused, HasSubstr("compressed"));
  EXPECT_EQ(files[1].path, folder.path() + "/a/z.txt");
  EXPECT_EQ(files[1].refused, "");
  EXPECT_EQ(files[2].path, folder.path() + "/b.txt");
  EXPECT_EQ(files[3].path, folder.path() + "/c.parquet");
  EXPECT_EQ(files[3].refused, "");
  EXPECT_THROW(input_files({folder.path() + "/none"}), Error);
  EXPECT_THROW(input_files({"/dev/null"}), Error);
}

TEST(InputFiles, FollowsLinksAndNamesTheBrokenOnes) {
  const ScratchFolder folder;
  folder.file("elsewhere/a.txt", "a");
  std::filesystem::create_directory(folder.path() + "/data");
  std::filesystem::create_symlink("../elsewhere", folder.path() + "/data/1");
  std::filesystem::create_symlink("nowhere", folder.path() + "/data/2.txt");
  const auto files = input_files({folder.path() + "/data"});
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(files[0].path, folder.path() + "/data/1/a.txt");
  EXPECT_EQ(files[0].refused, "");
  EXPECT_EQ(files[1].path, folder.path() + "/data/2.txt");
  EXPECT_EQ(files[1].refused, "a broken link");
}

// Scripts stand in for Python; the test data.parquet uses a real one.
class ParquetRowsTest : public ::testing::Test {
 protected:
  std::string program(const std::string& script) {
    const auto path = folder_.file("it's a python", "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  std::vector<std::string> rows(const std::string& python) {
    std::vector<std::string> found;
    for_each_parquet_row(
        "a.parquet", {.field = "b'c", .python = python},
        [&](std::string_view row) { found.emplace_back(row); });
    return found;
  }
  std::string refusal(const std::string& python) {
    try {
      rows(python);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  ScratchFolder folder_;
};

TEST_F(ParquetRowsTest, AreLinesOfAProgramThatGetsTheFileAndTheColumn) {
  EXPECT_THAT(
      rows(program(R"(printf '{"text": "%s"}\n' "$3" "$4" 'x\ny')")),
      ElementsAre("a.parquet", "b'c", "x\ny"));
  EXPECT_THAT(rows(program("exit 0")), ElementsAre());
}

TEST_F(ParquetRowsTest, AProgramThatIsMissingOrEndsEarlyIsAnError) {
  EXPECT_THAT(
      refusal(folder_.path() + "/none"),
      AllOf(
          HasSubstr("a.parquet: expected a Python that has pyarrow"),
          HasSubstr("found: no program " + folder_.path() + "/none"),
          HasSubstr("pip install pyarrow")));
  EXPECT_THAT(
      refusal(program(R"(echo '{"missing": "No module"}')")),
      AllOf(
          HasSubstr("found: No module. Make one with"),
          HasSubstr("to_json(out, orient=\"records\", lines=True)")));
  EXPECT_THAT(
      refusal(program("echo '{\"text\": \"a\"}'; kill -9 $$")),
      HasSubstr("was ended by signal 9"));
  EXPECT_THAT(refusal(program("exit 3")), HasSubstr("ended with status 3"));
  EXPECT_THAT(
      refusal(program("echo hello")),
      HasSubstr("rows from Python, found: hello"));
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareReport run(PrepareOptions options) {
    options.tokenizer = options.tokenizer.empty() ? "bytes" : options.tokenizer;
    options.out = out();
    return prepare(options, [](std::size_t, std::size_t) {});
  }
  std::string refusal(const PrepareOptions& options) {
    try {
      run(options);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string out() const { return folder_.path() + "/out"; }
  std::string in(const char* name) const { return folder_.path() + "/" + name; }

  ScratchFolder folder_;
};

TEST_F(PrepareTest, WritesDocumentsAndSaysWhatItTook) {
  folder_.file("in/1.txt", "ab");
  folder_.file("in/2.bin", std::string("a\0", 2));
  folder_.file("in/3.jsonl", "{\"text\": \"c\"}\n{\"text\": \"d\"}\n");
  const auto report = run({.inputs = {in("in")}});
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.tokens, 4);
  ASSERT_EQ(report.left_out.size(), 1U);
  EXPECT_EQ(report.left_out[0].refused, "binary: a NUL at byte 1");
  const data::TokenFile file(out() + "/train.tokens");
  EXPECT_THAT(file.document(0), ElementsAre('a', 'b'));
  EXPECT_THAT(file.document(2), ElementsAre('d'));
  const auto json =
      nlohmann::json::parse(*text_of_file(out() + "/prepared.json"));
  EXPECT_EQ(json["documents"], 3);
  EXPECT_EQ(json["taken"].size(), 2U);
  EXPECT_EQ(json["left_out"][0]["path"], in("in") + "/2.bin");
}

TEST_F(PrepareTest, KeepsAnEvenShareOfTheDocumentsForValidation) {
  folder_.file("in.txt", "a\nb\nc\nd\ne\nf\ng\nh\n");
  const auto report = run(
      {.inputs = {in("in.txt")},
       .documents = {.format = "line"},
       .validation = 0.25});
  EXPECT_EQ(report.validation_documents, 2);
  const data::TokenFile validation(out() + "/validation.tokens");
  EXPECT_THAT(validation.document(0), ElementsAre('d'));
  EXPECT_THAT(validation.document(1), ElementsAre('h'));
  EXPECT_EQ(data::TokenFile(out() + "/train.tokens").documents(), 6);
}

TEST_F(PrepareTest, AShareThatKeepsNoDocumentIsRefused) {
  const auto text = folder_.file("in.txt", "a\nb\nc\n");
  EXPECT_THAT(
      refusal(
          {.inputs = {text},
           .documents = {.format = "line"},
           .validation = 0.25}),
      HasSubstr("at least one of the 3 documents, found 0.25"));
  EXPECT_FALSE(std::filesystem::exists(out()));
}

TEST_F(PrepareTest, ARefusalLeavesTheFolderThatWasThere) {
  std::filesystem::create_directory(out());
  EXPECT_THAT(
      refusal({.inputs = {folder_.file("empty", "")}}),
      HasSubstr("found it empty"));
  EXPECT_TRUE(std::filesystem::is_empty(out()));
}

TEST_F(PrepareTest, AFolderThatAnotherCommandWritesIsRefused) {
  const auto text = folder_.file("in.txt", "a");
  folder_.file("out/validation.tokens", "of the other");
  const data::TokenFileWriter other(
      out() + "/train.tokens", {.vocabulary = 10});
  EXPECT_THAT(
      refusal({.inputs = {text}}), HasSubstr("out/train.tokens: expected one"));
  EXPECT_TRUE(std::filesystem::exists(out() + "/validation.tokens"));
}

TEST_F(PrepareTest, WhatAnInterruptedCommandLeftIsNoValidation) {
  const auto text = folder_.file("in.txt", "a");
  folder_.file("out/validation.tokens", "old");
  run({.inputs = {text}});
  EXPECT_FALSE(std::filesystem::exists(out() + "/validation.tokens"));
}

TEST_F(PrepareTest, AnEndOfTextTokenFollowsEachDocument) {
  folder_.file("in.txt", "ab\nc\n");
  run({.inputs = {in("in.txt")}, .documents = {.format = "line"}, .eos = "$"});
  const data::TokenFile file(out() + "/train.tokens");
  EXPECT_THAT(file.document(0), ElementsAre('a', 'b', '$'));
  EXPECT_THAT(file.document(1), ElementsAre('c', '$'));
}

TEST_F(PrepareTest, RefusesWhatCannotBecomeDataAndLeavesNone) {
  folder_.file("in/binary", std::string("a\0", 2));
  const auto text = folder_.file("in.txt", "a");
  EXPECT_THAT(
      refusal({.inputs = {in("in")}}),
      AllOf(HasSubstr("at least one document"), HasSubstr("a NUL")));
  EXPECT_THAT(
      refusal({.inputs = {in("in/binary")}}), HasSubstr("expected text"));
  EXPECT_THAT(
      refusal({.inputs = {folder_.file("empty", "")}}),
      HasSubstr("found it empty"));
  EXPECT_THAT(
      refusal({.tokenizer = folder_.path(), .inputs = {text}}),
      HasSubstr("tokenizer.json, found none"));
  EXPECT_THAT(
      refusal({.inputs = {text}, .eos = "$$"}),
      HasSubstr("expected one token"));
  EXPECT_THAT(
      refusal({.inputs = {text}, .validation = 1}), HasSubstr("[0, 1)"));
  EXPECT_FALSE(std::filesystem::exists(out() + "/train.tokens"));
  EXPECT_FALSE(std::filesystem::exists(out() + "/train.tokens.partial"));
  run({.inputs = {text}});
  EXPECT_THAT(
      refusal({.inputs = {text}}), HasSubstr("expected a folder without data"));
}

}  // namespace
}  // namespace sherd::tools
