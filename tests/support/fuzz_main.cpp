// SPDX-License-Identifier: Apache-2.0
//
// A plain main for fuzz targets, for builds without libFuzzer, so that the targets stay in use. It
// supports two of libFuzzer's options, and files:
//   TARGET [-runs=N] [-seed=S]   N random inputs
//   TARGET FILE...               each file once The current input is kept in TARGET.input until it
//   returns.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::int64_t kInputBytesMax = 400;

struct Options {
  std::uint64_t runs = 1000;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("-runs=")) {
      options.runs = std::stoull(word.substr(std::strlen("-runs=")));
    } else if (word.starts_with("-seed=")) {
      options.seed = std::stoull(word.substr(std::strlen("-seed=")));
    } else {
      options.files.push_back(word);
    }
  }
  return options;
}

std::vector<std::uint8_t> random_input(std::mt19937_64& random) {
  std::uniform_int_distribution<std::int64_t> length(0, kInputBytesMax);
  std::uniform_int_distribution<int> byte(0, 255);
  std::vector<std::uint8_t> input(static_cast<std::size_t>(length(random)));
  std::generate(input.begin(), input.end(), [&] {
    return static_cast<std::uint8_t>(byte(random));
  });
  return input;
}

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(
    const std::string& path, const std::vector<std::uint8_t>& input) {
  std::ofstream file(path, std::ios::binary);
  std::copy(input.begin(), input.end(), std::ostreambuf_iterator<char>(file));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  for (const std::string& path : options.files) {
    const std::vector<std::uint8_t> input = read_file(path);
    (void)LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  if (!options.files.empty()) {
    return 0;
  }
  std::fprintf(
      stderr, "%llu random inputs, seed %llu\n",
      static_cast<unsigned long long>(options.runs),
      static_cast<unsigned long long>(options.seed));
  const std::string running = std::string(argv[0]) + ".input";
  std::mt19937_64 random(options.seed);
  for (std::uint64_t run = 0; run < options.runs; ++run) {
    const std::vector<std::uint8_t> input = random_input(random);
    write_file(running, input);
    (void)LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  return std::remove(running.c_str());
}
