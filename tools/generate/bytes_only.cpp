// SPDX-License-Identifier: Apache-2.0
//
// What stands for the tokenizers of src/data in a build without them: bytes are tokens, and a
// tokenizer.json is refused.
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>

namespace sherd::data {
namespace {

constexpr std::int64_t kBytes = 256;

class ByteTokens : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text) override {
    std::vector<std::int64_t> ids;
    ids.reserve(text.size());
    for (const char c : text) {
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids) const override {
    return {ids.begin(), ids.end()};
  }
  std::int64_t vocab_size() const override { return kBytes; }
  const SpecialTokens& special() const override { return special_; }
  std::uint64_t digest() const override { return 0; }

 private:
  const SpecialTokens special_;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() {
  return std::make_unique<ByteTokens>();
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder) {
  throw Error(
      folder +
      "/tokenizer.json: expected a build with tokenizers, found one without");
}

}  // namespace sherd::data
