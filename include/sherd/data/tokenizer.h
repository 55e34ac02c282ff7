// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer turns text into token ids and back, with the same ids as Hugging Face's `tokenizers`
// for the same tokenizer.json. It supports byte-level BPE (GPT-2, Llama 3, Qwen2 and their like)
// and Unigram (SentencePiece's, as in T5 and XLM-R). docs/design/data.md lists the supported
// components; any other one is refused by name. load_tokenizer() and byte_tokenizer() exist only in
// builds that found libpcre2-dev and libutf8proc-dev. Thread rule: one thread at a time for
// encode(), which keeps a cache; any thread for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

// The ids that a tokenizer's files give to special tokens.
struct SpecialTokens {
  // bos_token and eos_token of tokenizer_config.json or, without it, of special_tokens_map.json.
  std::optional<std::int64_t> bos;
  std::optional<std::int64_t> eos;
  // What the post-processor of tokenizer.json puts before and after a text, as transformers does
  // unless add_special_tokens=False. Encode a prompt as `before` + encode(text).
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> after;
};

class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of a text, like `tokenizers`' encode(text, add_special_tokens=False): a special token
  // that is spelt out in the text becomes its id. Bytes that are not UTF-8 count as U+FFFD, as with
  // Python's errors="replace".
  virtual std::vector<std::int64_t> encode(std::string_view text) = 0;

  // The text of ids, including special tokens, like `tokenizers`' decode(ids,
  // skip_special_tokens=False). An incomplete character becomes U+FFFD. Throws Error for an id
  // outside [0, vocab_size()).
  virtual std::string decode(const std::vector<std::int64_t>& ids) const = 0;

  // The largest id + 1. A model's vocabulary may be larger, padded to a round number.
  virtual std::int64_t vocab_size() const = 0;

  virtual const SpecialTokens& special() const = 0;

  // A hash of the content of tokenizer.json, which identifies the tokenizer. Not for security.
  virtual std::uint64_t digest() const = 0;
};

// Reads tokenizer.json in `folder` and, if they exist, tokenizer_config.json and
// special_tokens_map.json. Throws Error, saying the file, what was expected and what was found, if
// there is no tokenizer.json, if a file is not JSON, or if a component is not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// A tokenizer whose tokens are bytes: vocabulary 256, no special tokens. It is the one to use for
// models whose training data was not prepared.
std::unique_ptr<Tokenizer> byte_tokenizer();

// The index of the first byte that is not part of a valid UTF-8 character, or text.size().
std::size_t first_invalid_utf8(std::string_view text);

// The path of the tokenizer.json in a folder, where "" is the working directory; "" if there is
// none.
std::string tokenizer_file(const std::string& folder);

// digest() of byte_tokenizer().
std::uint64_t bytes_digest();

// digest() of the tokenizer that load_tokenizer() would make from the folder, or bytes_digest() if
// it has no tokenizer.json. Throws Error if the file cannot be read.
std::uint64_t tokenizer_digest(const std::string& folder);

// Copies the tokenizer files that load_tokenizer() and transformers read, and
// generation_config.json, into another folder, replacing files there. Returns their new paths.
// Throws Error naming the file that cannot be copied.
std::vector<std::string> copy_tokenizer(
    const std::string& from, const std::string& to);

}  // namespace sherd::data
