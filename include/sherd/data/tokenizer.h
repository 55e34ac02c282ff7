// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer turns text into token ids and back, with the ids that Hugging Face's `tokenizers` gives
// for the same tokenizer.json. It reads byte-level BPE (GPT-2, Llama 3, Qwen2 and their like) and
// Unigram (SentencePiece's, as T5 and XLM-R have it); docs/design/data.md says which components, and
// another one is refused by its name. load_tokenizer() and byte_tokenizer() are in builds that found
// libpcre2-dev and libutf8proc-dev. Thread rule: one thread at a time for encode(), which keeps a
// cache; any thread for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

// The ids that a tokenizer's files name for a purpose.
struct SpecialTokens {
  // bos_token and eos_token of tokenizer_config.json, else of special_tokens_map.json.
  std::optional<std::int64_t> bos;
  std::optional<std::int64_t> eos;
  // What the post-processor of tokenizer.json puts before and after a text: what transformers adds
  // unless it is told add_special_tokens=False. Encode a prompt as `before` + encode(text).
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> after;
};

class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of a text, as `tokenizers`' encode(text, add_special_tokens=False): a special token
  // that is spelt out in the text becomes its id. Bytes that are not UTF-8 count as U+FFFD, as
  // Python's errors="replace" reads them.
  virtual std::vector<std::int64_t> encode(std::string_view text) = 0;

  // The text of ids, special tokens included, as `tokenizers`' decode(ids,
  // skip_special_tokens=False): where a character is cut in the middle there is U+FFFD. Throws
  // Error for an id outside [0, vocab_size()).
  virtual std::string decode(const std::vector<std::int64_t>& ids) const = 0;

  // The largest id + 1. A model may have a larger vocabulary, padded to a round number.
  virtual std::int64_t vocab_size() const = 0;

  virtual const SpecialTokens& special() const = 0;

  // Tells tokenizers apart: a hash of the content of tokenizer.json. Not for security.
  virtual std::uint64_t digest() const = 0;
};

// Reads tokenizer.json in `folder`, and tokenizer_config.json and special_tokens_map.json where
// they are. Throws Error naming the file, what was expected and what was found: no such file, not
// JSON, or a component that is not supported.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// Bytes are tokens: vocabulary 256, no special tokens. What a model was trained with when its data
// was not prepared.
std::unique_ptr<Tokenizer> byte_tokenizer();

// Where the first byte lies that is not part of a UTF-8 character; text.size() when there is none.
std::size_t first_invalid_utf8(std::string_view text);

// The path of the tokenizer.json in a folder; "" when there is none.
std::string tokenizer_file(const std::string& folder);

// digest() of the tokenizer that load_tokenizer() makes of a folder's tokenizer.json; that of
// byte_tokenizer() when there is none. Throws Error when the file cannot be read.
std::uint64_t tokenizer_digest(const std::string& folder);

// Copies the files that load_tokenizer() and transformers read of a tokenizer, and
// generation_config.json, into another folder, over those there. Returns their new paths. Throws
// Error naming the file that cannot be copied.
std::vector<std::string> copy_tokenizer(
    const std::string& from, const std::string& to);

}  // namespace sherd::data
