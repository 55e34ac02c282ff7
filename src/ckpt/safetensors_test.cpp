// SPDX-License-Identifier: Apache-2.0
#include "ckpt/safetensors.h"

#include <cstddef>
#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "ckpt/dtypes.h"
#include "support/error_of.h"

namespace sherd::ckpt {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

using Metadata = std::map<std::string, std::string>;
using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TensorInfo info(
    const std::string& name, const std::string& dtype, const Shape& shape) {
  TensorInfo result;
  result.name = name;
  result.dtype = dtype;
  result.shape = shape;
  return result;
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int byte = 0; byte < 8; ++byte) {
    bytes += static_cast<char>(length >> (8 * byte) & 0xff);
  }
  return bytes;
}

// A whole file with this JSON.
std::string file_of(const std::string& json, std::size_t data_bytes) {
  return length_bytes(json.size()) + json + std::string(data_bytes, 'd');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_header(file, std::ssize(file), "model.st");
}

// Returns why a file with this JSON is refused.
std::string refused(const std::string& json, std::size_t data_bytes = 24) {
  return error_of([&] { (void)parse(file_of(json, data_bytes)); });
}

// Expects each file to be refused, with `reason` in the sentence.
void expect_refused(
    const std::string& reason,
    const std::vector<std::string>& jsons,
    std::size_t data_bytes = 24) {
  for (const auto& json : jsons) {
    EXPECT_THAT(
        refused(json, data_bytes),
        AllOf(StartsWith("[ckpt] model.st: expected "), HasSubstr(reason)))
        << json.substr(0, 200);
  }
}

// The parts of the JSON of a valid header with one tensor.
struct Parts {
  std::string name = "a";
  std::string dtype = "\"F32\"";
  std::string shape = "[2,3]";
  std::string offsets = "[0,24]";
};

std::string json_of(const Parts& parts) {
  return "{\"" + parts.name + R"(":{"dtype":)" + parts.dtype + R"(,"shape":)" +
      parts.shape + R"(,"data_offsets":)" + parts.offsets + "}}";
}

// Expects each of the values to be refused in the place of one valid part.
void expect_refused(
    const std::string& reason,
    std::string Parts::* part,
    const std::vector<std::string>& instead) {
  for (const auto& wrong : instead) {
    Parts parts;
    parts.*part = wrong;
    expect_refused(reason, {json_of(parts)});
  }
}

// A tensor of U8 elements, without the braces around all.
std::string bytes_at(const std::string& name, int begin, int end) {
  return "\"" + name + R"(":{"dtype":"U8","shape":[)" +
      std::to_string(end - begin) + R"(],"data_offsets":[)" +
      std::to_string(begin) + "," + std::to_string(end) + "]}";
}

std::vector<std::string> names(const SafetensorsHeader& header) {
  std::vector<std::string> result;
  for (const auto& tensor : header.tensors) {
    result.push_back(tensor.name);
  }
  return result;
}

void expect_round_trip(std::vector<TensorInfo> tensors, const Metadata& about) {
  const auto first = header_bytes(tensors, about);
  const auto data_bytes = tensors.empty() ? 0 : tensors.back().end;
  const auto file_bytes = std::ssize(first) + data_bytes;
  const auto header = parse_header(first, file_bytes, "model.st");
  EXPECT_EQ(header.tensors, tensors);
  EXPECT_EQ(header.metadata, about);
  EXPECT_EQ(header.data_begin, std::ssize(first));
  EXPECT_EQ(header.data_begin % 64, 0);
  EXPECT_EQ(header_length(first, file_bytes, "model.st"), header.data_begin);
}

TEST(ElementBytes, AreThoseOfTheFormat) {
  for (const auto* dtype :
       {"BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
        "F8_E5M2FNUZ"}) {
    EXPECT_EQ(element_bytes(dtype), 1) << dtype;
  }
  for (const auto* dtype : {"F16", "BF16", "I16", "U16"}) {
    EXPECT_EQ(element_bytes(dtype), 2) << dtype;
  }
  for (const auto* dtype : {"F32", "I32", "U32"}) {
    EXPECT_EQ(element_bytes(dtype), 4) << dtype;
  }
  for (const auto* dtype : {"F64", "I64", "U64", "C64"}) {
    EXPECT_EQ(element_bytes(dtype), 8) << dtype;
  }
  for (const auto* dtype : {"", "f32", "F32 ", "F128", "F4", "F6_E2M3"}) {
    EXPECT_EQ(element_bytes(dtype), 0) << dtype;
  }
}

TEST(HeaderBytes, AreReadBackAsTheyWere) {
  expect_round_trip({}, {});
  expect_round_trip({}, {{"format", "pt"}});
  expect_round_trip({info("weight", "F32", {2, 3})}, {});
  expect_round_trip(
      {info("z", "BF16", {5}), info("a", "I64", {1, 2}), info("m", "U8", {7})},
      {{"format", "pt"}, {"step", "12"}});
}

TEST(HeaderBytes, HoldScalarsAndTensorsWithoutElements) {
  expect_round_trip({info("scalar", "F64", {})}, {});
  expect_round_trip(
      {info("a", "F32", {0}), info("b", "F32", {3, 0, 2}),
       info("c", "BOOL", {}), info("d", "I8", {0})},
      {});
}

TEST(HeaderBytes, HoldAnyTextInNamesAndMetadata) {
  expect_round_trip(
      {info("say \"hi\" \\ {}[]:,", "U8", {1}),
       info("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "U8", {2}),
       info(" ", "U8", {3})},
      {{"", ""}, {"\"", "line\nline\ttab\x01"}, {"\xc3\xa4", "{\"a\":1}"}});
}

TEST(HeaderBytes, PlaceTensorsInTheOrderGiven) {
  std::vector<TensorInfo> tensors = {
      info("z", "F32", {2, 3}), info("e", "F32", {0, 3}), info("a", "I8", {5})};
  tensors[0].begin = 99;  // It is ignored.
  (void)header_bytes(tensors, {});
  EXPECT_EQ(tensors[0].begin, 0);
  EXPECT_EQ(tensors[0].end, 24);
  EXPECT_EQ(tensors[1].begin, 24);
  EXPECT_EQ(tensors[1].end, 24);
  EXPECT_EQ(tensors[2].begin, 24);
  EXPECT_EQ(tensors[2].end, 29);
}

TEST(HeaderBytes, AreLengthJsonAndSpaces) {
  std::vector<TensorInfo> tensors = {info("a", "F32", {2, 3})};
  const std::string json =
      R"({"__metadata__":{"k":"v"},)"
      R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";
  ASSERT_LT(json.size(), 120U);
  EXPECT_EQ(
      header_bytes(tensors, {{"k", "v"}}),
      length_bytes(120) + json + std::string(120 - json.size(), ' '));
}

TEST(HeaderBytes, EndAtAMultipleOf64) {
  for (std::size_t length = 1; length <= 130; ++length) {
    std::vector<TensorInfo> tensors = {
        info(std::string(length, 'n'), "U8", {})};
    EXPECT_EQ(header_bytes(tensors, {}).size() % 64, 0U) << length;
  }
}

TEST(HeaderBytes, RefuseWhatCouldNotBeReadAndLeaveTensorsAlone) {
  const auto refused_for = [](std::vector<TensorInfo> tensors,
                              const Metadata& metadata = {}) {
    tensors.insert(tensors.begin(), info("first", "F32", {2}));
    const auto before = tensors;
    auto why = error_of([&] { (void)header_bytes(tensors, metadata); });
    EXPECT_EQ(tensors, before);
    EXPECT_THAT(why, StartsWith("[ckpt] expected "));
    return why;
  };
  EXPECT_THAT(refused_for({info("", "F32", {})}), HasSubstr("found \"\""));
  EXPECT_THAT(refused_for({info("a\nb", "F32", {})}), HasSubstr(R"("a\nb")"));
  EXPECT_THAT(refused_for({info("a\x7f", "F32", {})}), HasSubstr("control"));
  EXPECT_THAT(
      refused_for({info("__metadata__", "F32", {})}),
      HasSubstr("__metadata__"));
  EXPECT_THAT(
      refused_for({info("b", "F32", {}), info("b", "U8", {})}),
      HasSubstr("once, found two of tensor \"b\""));
  EXPECT_THAT(refused_for({info("a", "F4", {2})}), HasSubstr("\"F4\""));
  EXPECT_THAT(refused_for({info("a", "F32", {2, -1})}), HasSubstr("found -1"));
  EXPECT_THAT(
      refused_for({info("a", "F32", Shape(65, 1))}), HasSubstr("64 dims"));
  EXPECT_THAT(refused_for({info("a", "F32", {kMax})}), HasSubstr("2^61"));
  EXPECT_THAT(refused_for({info("a", "U8", {0, kMax})}), HasSubstr("2^61"));
  const auto huge = std::int64_t{1} << 60;
  EXPECT_THAT(
      refused_for({info("a", "U8", {huge}), info("b", "U8", {huge})}),
      HasSubstr("data of fewer than 2^61"));
  EXPECT_THAT(refused_for({info("\xff", "F32", {})}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused_for({}, {{"key", "\xc3"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(refused_for({}, {{"\xc3", "value"}}), HasSubstr("UTF-8"));
  EXPECT_THAT(
      refused_for({}, {{"k", std::string(kHeaderBytesMax, 'v')}}),
      HasSubstr("at most 100000000"));
}

TEST(HeaderLength, IsAllBeforeTheData) {
  EXPECT_EQ(header_length(length_bytes(2), 10, "f"), 10);
  EXPECT_EQ(header_length(length_bytes(0x0102), 5000, "f"), 8 + 0x0102);
  EXPECT_EQ(
      header_length(length_bytes(kHeaderBytesMax), kMax, "f"),
      8 + kHeaderBytesMax);
}

TEST(HeaderLength, RefusesLengthsThatCannotBe) {
  const auto refused_length = [](std::uint64_t length, std::int64_t file) {
    return error_of(
        [&] { (void)header_length(length_bytes(length), file, "f.st"); });
  };
  EXPECT_EQ(
      refused_length(3, 10),
      "[ckpt] f.st: expected a header of 3 bytes, found the end of the file at"
      " byte 10");
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1},
        static_cast<std::uint64_t>(kHeaderBytesMax) + 1, std::uint64_t{1} << 63,
        ~std::uint64_t{0}}) {
    EXPECT_THAT(
        refused_length(length, kMax),
        HasSubstr("found the length " + std::to_string(length) + " at byte 0"));
  }
}

TEST(HeaderLength, RefusesAFileWithoutLength) {
  for (std::size_t size = 0; size < 8; ++size) {
    const std::string short_file = length_bytes(2).substr(0, size);
    EXPECT_THAT(
        error_of([&] { (void)parse(short_file); }),
        HasSubstr("found " + std::to_string(size)));
  }
  EXPECT_THAT(
      error_of([] { (void)header_length(length_bytes(2), 7, "f"); }),
      HasSubstr("found 7"));
  EXPECT_THAT(
      error_of([] { (void)header_length(length_bytes(2), -1, "f"); }),
      HasSubstr("found -1"));
}

TEST(ParseHeader, ReadsWhatOthersWrite) {
  // Any order of keys, white space, escapes, and data at any position.
  const std::string json =
      "{ \"b\" :\t{\"data_offsets\": [4 , 4], \"shape\":[0, 9],\r\n\"dtype\" :"
      "\"U8\" } , "
      R"("\u00e4\/":{"shape":[],"dtype":"\u00463\u0032","data_offsets":[0,4]})"
      R"(,"__metadata__":{"k":"\ud83d\ude00","l":""}}   )";
  auto a = info("\xc3\xa4/", "F32", {});
  a.end = 4;
  auto b = info("b", "U8", {0, 9});
  b.begin = b.end = 4;
  const auto header = parse(file_of(json, 4));
  EXPECT_THAT(header.tensors, ElementsAre(a, b));
  EXPECT_EQ(header.metadata, (Metadata{{"k", "\xf0\x9f\x98\x80"}, {"l", ""}}));
  EXPECT_EQ(header.data_begin, 8 + std::ssize(json));
  EXPECT_THAT(parse(file_of("{}", 0)).tensors, IsEmpty());
  EXPECT_THAT(parse(file_of(R"({"__metadata__":{}})", 0)).metadata, IsEmpty());
}

TEST(ParseHeader, PutsTensorsInTheOrderOfTheFile) {
  const auto header = parse(file_of(
      "{" + bytes_at("z", 3, 3) + "," + bytes_at("a", 3, 8) + "," +
          bytes_at("y", 3, 3) + "," + bytes_at("c", 0, 3) + "," +
          bytes_at("b", 8, 8) + "}",
      8));
  EXPECT_THAT(names(header), ElementsAre("c", "y", "z", "a", "b"));
}

TEST(ParseHeader, NeedsNoMoreThanTheHeader) {
  const auto file = file_of("{" + bytes_at("a", 0, 24) + "}", 24);
  const auto size = std::ssize(file);
  const auto needed = header_length(file.substr(0, 8), size, "f");
  const auto first = file.substr(0, static_cast<std::size_t>(needed));
  EXPECT_EQ(parse_header(first, size, "f"), parse(file));
  const std::string_view fewer = std::string_view(first).substr(0, 60);
  EXPECT_THAT(
      error_of([&] { (void)parse_header(fewer, size, "f"); }),
      EndsWith("bytes of the file, found 60"));
}

TEST(ParseHeader, RefusesWhatIsNoObject) {
  EXPECT_EQ(
      refused("[1]"),
      "[ckpt] model.st: expected a header that begins with '{', found \"[1]\""
      " at byte 8");
  expect_refused(
      "begins with '{'", {" {}", "\xef\xbb\xbf{}", "17", "null", "\"{}\""}, 0);
}

TEST(ParseHeader, RefusesAnythingButSpacesBehindTheJson) {
  EXPECT_THAT(refused("{}\n", 0), EndsWith(R"(found "\n" at byte 10)"));
  EXPECT_THAT(refused("{}  {}", 0), EndsWith(R"(found "{}" at byte 12)"));
  expect_refused("only spaces", {std::string("{}\0 }", 5), "{}//", "{},"}, 0);
}

TEST(ParseHeader, RefusesBrokenJsonAndNamesTheByte) {
  EXPECT_EQ(
      refused(R"({"a" {}})"),
      "[ckpt] model.st: expected ':', found \"{}}\" at byte 13");
  EXPECT_THAT(refused(R"({"a")"), EndsWith("':', found the end at byte 12"));
  EXPECT_THAT(refused("{a:1}"), EndsWith(R"(a text, found "a:1}" at byte 9)"));
  expect_refused("at byte 9", {R"({"a)", R"({"a\)", R"({")", "{,}", "{1:2}"});
  expect_refused("expected '{'", {R"({"a":1})", R"({"a":null})", R"({"a":)"});
  const auto whole = json_of({});
  const auto open = whole.substr(0, whole.size() - 1);
  expect_refused("expected '}'", {open, open + "]", open + "\"b\""});
  expect_refused("a text", {open + ",}", open + ",", "{ "});
}

TEST(ParseHeader, RefusesTextThatIsNoUtf8) {
  std::vector<std::string> bad = {
      "\xff",     "\x80",         "\xc3",
      "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
      "\\ud800",  "\\udc00",      "\\ud800\\u0041",
      "\\u12",    "\\x",          "\n",
      "\x01"};
  bad.emplace_back(1, '\0');
  expect_refused("JSON in UTF-8", &Parts::name, bad);
  for (auto& text : bad) {
    text = "\"" + text + "\"";
  }
  expect_refused("JSON in UTF-8", &Parts::dtype, bad);
}

TEST(ParseHeader, RefusesNamesThatNobodyCanRead) {
  expect_refused(
      "a name of a tensor, without control characters", &Parts::name,
      {"", "\\u0000", "a\\n", "\\u001bb", "\\u007f", "\x7f"});
}

TEST(ParseHeader, RefusesKeysThatComeTwice) {
  const auto a = bytes_at("a", 0, 24);
  EXPECT_EQ(
      refused("{" + a + ", " + a + "}"),
      "[ckpt] model.st: expected each key once, found"
      " \"\\\"a\\\":{\\\"dtype\\\":\\\"U8\\\",\\\"shape\" at byte 64");
  expect_refused(
      "each key once",
      {"{" + a + "," + bytes_at("\\u0061", 0, 24) + "}",
       R"({"a":{"dtype":"U8","dtype":"U8","shape":[24]}})",
       R"({"__metadata__":{"k":"1","k":"2"}})",
       R"({"__metadata__":{},"__metadata__":{}})"});
}

TEST(ParseHeader, RefusesKeysOfATensorThatMeanNothing) {
  expect_refused(
      "expected dtype, shape or data_offsets", &Parts::dtype,
      {R"("F32","x":1)", R"("F32","__metadata__":{})"});
}

TEST(ParseHeader, RefusesTensorsThatLackAKey) {
  EXPECT_EQ(
      refused(R"({"a":{"dtype":"F32","shape":[2,3]}})"),
      "[ckpt] model.st: expected dtype, shape and two data_offsets of tensor"
      " \"a\", found fewer");
  expect_refused(
      "found fewer",
      {R"({"a":{"dtype":"F32","data_offsets":[0,24]}})",
       R"({"a":{"shape":[2,3],"data_offsets":[0,24]}})", R"({"a":{}})"});
}

TEST(ParseHeader, RefusesUnknownDtypes) {
  EXPECT_EQ(
      refused(json_of({.dtype = "\"F33\""})),
      "[ckpt] model.st: expected a dtype with elements of whole bytes, found"
      " \"F33\" of tensor \"a\"");
  expect_refused(
      "a dtype", &Parts::dtype,
      {R"("")", R"("f32")", R"("F32\u0000")", R"("F4")"});
  expect_refused(
      "a text", &Parts::dtype, {"32", "null", "true", "[\"F32\"]", "{}"});
}

TEST(ParseHeader, RefusesNumbersThatAreNoSizes) {
  for (const std::string bad :
       {"-1", "-0", "+6", "6.0", "6e0", "06", "00", "null", "true", "\"6\"",
        "[6]", "{}", "", "9223372036854775808", "18446744073709551616", "1e999",
        "NaN", "1111111111111111111111111111111111111111111111111111111111"}) {
    expect_refused(
        "a whole number from 0 to 2^63 - 1", &Parts::shape,
        {"[" + bad + ",6]", "[6," + bad + "]"});
  }
  expect_refused("'['", &Parts::shape, {"6", "null", "\"6\"", "{}", ""});
  expect_refused("']'", &Parts::shape, {"[6 6]", "[6}", "[0x6]"});
}

TEST(ParseHeader, RefusesShapesThatOverflow) {
  const std::vector<std::string> bad = {
      "[9223372036854775807]", "[4294967296,4294967296]",
      "[2305843009213693952]", "[576460752303423488]",
      "[0,9223372036854775807,2]", "[9223372036854775807,2,0]",
      // 2^64 + 24 bytes, which would be 24 if the product wrapped around.
      "[4611686018427387910]"};
  expect_refused("fewer than 2^61 bytes", &Parts::shape, bad);
}

TEST(ParseHeader, RefusesShapesAndDataThatDiffer) {
  EXPECT_EQ(
      refused(json_of({.shape = "[2,2]"})),
      "[ckpt] model.st: expected 16 bytes of tensor \"a\", as dtype and shape"
      " say, found data_offsets from 0 to 24");
  expect_refused("expected 48 bytes", &Parts::dtype, {"\"F64\""});
  expect_refused("expected 4 bytes", &Parts::shape, {"[]"});
  expect_refused("expected 0 bytes", &Parts::shape, {"[6,0]"});
}

TEST(ParseHeader, RefusesMoreDimsThanATensorHas) {
  std::string shape = "[2,3";
  for (int dim = 2; dim < kDimsMax; ++dim) {
    shape += ",1";
  }
  EXPECT_EQ(refused(json_of({.shape = shape + "]"})), "no error");
  expect_refused("at most 64 numbers", &Parts::shape, {shape + ",1]"});
}

TEST(ParseHeader, RefusesOffsetsThatAreNoPlace) {
  expect_refused("from 24 to 0", &Parts::offsets, {"[24,0]"});
  const std::vector<std::string> bad = {
      "[-24,0]", "[0,24.0]", "[9223372036854775784,9223372036854775808]"};
  expect_refused("a whole number", &Parts::offsets, bad);
  expect_refused("found fewer", &Parts::offsets, {"[]", "[24]"});
  expect_refused("at most 2 numbers", &Parts::offsets, {"[0,24,24]"});
  expect_refused("'['", &Parts::offsets, {"24"});
}

TEST(ParseHeader, RefusesTensorsBeyondTheFile) {
  EXPECT_EQ(
      refused(json_of({}), 23),
      "[ckpt] model.st: expected 23 bytes of data or fewer, found the end of"
      " tensor \"a\" at 24");
  expect_refused(
      "at 9223372036854775807", &Parts::offsets,
      {"[9223372036854775783,9223372036854775807]"});
}

TEST(ParseHeader, RefusesHoles) {
  EXPECT_EQ(
      refused("{" + bytes_at("a", 0, 8) + "," + bytes_at("b", 9, 24) + "}"),
      "[ckpt] model.st: expected the begin of tensor \"b\" at 8 of data, found"
      " 9, a hole");
  expect_refused(
      "a hole",
      {"{" + bytes_at("a", 1, 24) + "}",
       "{" + bytes_at("a", 0, 12) + "," + bytes_at("b", 24, 24) + "}"});
}

TEST(ParseHeader, RefusesOverlaps) {
  EXPECT_THAT(
      refused("{" + bytes_at("a", 0, 8) + "," + bytes_at("b", 7, 24) + "}"),
      EndsWith("tensor \"b\" at 8 of data, found 7, an overlap"));
  const auto a = "{" + bytes_at("a", 0, 24) + ",";
  expect_refused("an overlap", {a + bytes_at("b", 0, 24) + "}"});
  // It has no bytes, but lies inside another one.
  expect_refused("an overlap", {a + bytes_at("b", 9, 9) + "}"});
}

TEST(ParseHeader, RefusesBytesBehindTheLastTensor) {
  EXPECT_EQ(
      refused(json_of({}), 25),
      "[ckpt] model.st: expected 24 bytes of data, as many as tensors have,"
      " found 25");
  expect_refused("expected 0 bytes of data", {"{}"}, 1);
}

TEST(ParseHeader, RefusesMetadataThatIsNoText) {
  for (const std::string bad : {"1", "null", "true", "[\"a\"]", "{\"k\":{}}"}) {
    const auto json = R"({"__metadata__":)" + bad + "}";
    EXPECT_THAT(refused(json, 0), HasSubstr(bad[0] == '{' ? "a text" : "'{'"));
    expect_refused("a text", {R"({"__metadata__":{"k":)" + bad + "}}"}, 0);
  }
}

TEST(ParseHeader, RefusesDeepNestingAtOnce) {
  const std::string lists(1'000'000, '[');
  expect_refused("a whole number", &Parts::shape, {lists});
  expect_refused("'{'", {R"({"a":)" + lists + "}"});
  std::string objects;
  for (int i = 0; i < 100'000; ++i) {
    objects += R"({"a":)";
  }
  expect_refused("dtype, shape or data_offsets", {objects});
}

TEST(ParseHeader, SaysLittleAboutLongTexts) {
  const std::string text(1'000'000, 'x');
  EXPECT_LT(refused(json_of({.name = text}), 8).size(), 300U);
  EXPECT_LT(refused(json_of({.dtype = "\"" + text + "\""})).size(), 300U);
  EXPECT_LT(refused("{\"" + text).size(), 300U);
}

// Whatever one wrong byte does, the result is an Error or a header that a writer could have
// written.
TEST(ParseHeader, HoldsWithAnyByteFlipped) {
  std::vector<TensorInfo> tensors = {
      info("a", "F32", {2, 3}), info("b", "U8", {}), info("c", "I16", {0})};
  const Metadata about = {{"k", "v"}};
  auto file = header_bytes(tensors, about);
  const std::size_t header_size = file.size();
  file += std::string(static_cast<std::size_t>(tensors.back().end), 'd');
  int parsed = 0;
  int refused_count = 0;
  for (std::size_t at = 0; at < header_size; ++at) {
    for (int flip = 1; flip < 256; ++flip) {
      auto damaged = file;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        const auto header = parse(damaged);
        auto again = header.tensors;
        (void)header_bytes(again, header.metadata);
        EXPECT_EQ(again, header.tensors) << at << " " << flip;
        ++parsed;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), StartsWith("[ckpt] model.st: expected "));
        ++refused_count;
      }
    }
  }
  EXPECT_GT(parsed, 0);  // Other names, other texts.
  EXPECT_GT(refused_count, parsed);
}

TEST(ParseHeader, RefusesAFileCutAnywhere) {
  std::vector<TensorInfo> tensors = {
      info("a", "F32", {2, 3}), info("b", "U8", {})};
  auto file = header_bytes(tensors, {});
  file += std::string(static_cast<std::size_t>(tensors.back().end), 'd');
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto cut = file.substr(0, size);
    EXPECT_THROW((void)parse(cut), Error) << size;
  }
  EXPECT_NO_THROW((void)parse(file));
}

}  // namespace
}  // namespace sherd::ckpt
