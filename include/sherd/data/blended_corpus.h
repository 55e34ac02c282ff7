// SPDX-License-Identifier: Apache-2.0
//
// BlendedCorpus is what a run trains on: one corpus or several with weights, and optionally a
// corpus for validation. Thread rule: any thread, nothing changes after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <sherd/data/corpus.h>

namespace sherd::data {

class BlendedCorpus {
 public:
  struct Source {
    std::unique_ptr<Corpus> corpus;
    double weight = 1;
  };

  // `path` is what Corpus takes, or a file whose name ends in "blend.json": {"sources": [{"path":
  // "web", "weight": 0.7}, ...], "validation": "news"}, with paths relative to its folder.
  // "validation" may be missing; for a folder of `sherd data prepare` it is validation.tokens. The
  // byte limit applies to each source. Throws Error like Corpus, and if a weight is not above 0, or
  // if sources differ in tokenizer or vocabulary.
  explicit BlendedCorpus(
      const std::string& path, const CorpusOptions& options = {});

  const std::string& path() const { return path_; }
  const std::vector<Source>& sources() const { return sources_; }
  const Corpus* validation() const { return validation_.get(); }  // Or null.
  std::int64_t vocabulary() const;
  std::int64_t tokens() const;  // Of all sources.
  // A hash that changes with every token, with the weights and with the validation corpus. For a
  // single corpus it is the hash of that corpus.
  std::uint64_t hash() const;
  // The folder of a source that contains its tokenizer; "" if no source has one.
  std::string tokenizer_folder() const;

 private:
  void read(const std::string& file, const CorpusOptions& options);
  void check_alike() const;

  std::string path_;
  std::vector<Source> sources_;
  std::unique_ptr<Corpus> validation_;
};

}  // namespace sherd::data
