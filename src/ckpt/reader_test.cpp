// SPDX-License-Identifier: Apache-2.0
#include "ckpt/reader.h"

#include <sys/resource.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "ckpt/save_testing.h"
#include "plan/checkpoint_reads.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::ckpt {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// A real checkpoint of two ranks: a tensor of four chunks, two on each rank.
class CheckpointReading : public ::testing::Test {
 protected:
  CheckpointReading() {
    auto pieces = save_shares({{key_, whole_}}, 2);
    for (auto& mine : pieces) {  // Both have copies of this one.
      mine.push_back(save_piece({"optimizer", "step"}, step_, {0, 3}));
    }
    const SaveJob job{.folder = scratch_.path(), .step = 1};
    save_one(*files_, pieces, job).throw_if_failed();
    const auto reader = CheckpointReader(good_);
    offset_ = reader.parts()[1].tensors[0].offset;
  }

  // The result of reading everything after the damage.
  std::string after(const std::function<void(const std::string&)>& damage) {
    const auto copy = scratch_.path() + "/copy";
    fs::remove_all(copy);
    fs::copy(good_, copy, fs::copy_options::recursive);
    damage(copy);
    return save_difference(
        copy, {{key_, whole_}, {{"optimizer", "step"}, step_}});
  }

  static void flip(const std::string& path, std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
  }

  const testing::ScratchFolder scratch_;
  const std::unique_ptr<FileSystem> files_ = make_posix_file_system();
  const std::string good_ = scratch_.path() + "/step-1";
  const TensorKey key_ = {"model", "weight"};
  const at::Tensor whole_ = at::arange(360'000, at::kLong);
  const at::Tensor step_ = at::full({3}, 5, at::kFloat);
  std::int64_t offset_ = 0;  // Of rank 1's part, in its file.
};

constexpr const char* kReaderFile0 = "/model-00000-000.safetensors";
constexpr const char* kReaderFile1 = "/model-00001-000.safetensors";

TEST_F(CheckpointReading, DamageIsNamedWithFileAndByte) {
  EXPECT_EQ(after([](const std::string&) {}), kSaveSame);
  EXPECT_THAT(
      after([&](const std::string& copy) {
        flip(copy + kReaderFile1, offset_ + kChunkBytes + 100);
      }),
      AllOf(
          HasSubstr(str("copy", kReaderFile1, ": weight is damaged in the ")),
          HasSubstr(str("at byte ", offset_ + kChunkBytes))));
  EXPECT_THAT(
      after([&](const std::string& copy) {
        fs::rename(copy + kReaderFile0, copy + "/other");
        fs::rename(copy + kReaderFile1, copy + kReaderFile0);
        fs::rename(copy + "/other", copy + kReaderFile1);
      }),
      HasSubstr(str("copy", kReaderFile0, ": ")));
}

TEST_F(CheckpointReading, FilesOfAnotherLengthAreNamedWithIt) {
  const auto bytes = fs::file_size(good_ + kReaderFile1);
  const auto resized = [&](std::uintmax_t to) {
    return after([&](const std::string& copy) {
      fs::resize_file(copy + kReaderFile1, to);
    });
  };
  for (const auto to : {bytes - 1, bytes + 1, std::uintmax_t{0}}) {
    EXPECT_THAT(
        resized(to),
        AllOf(
            HasSubstr(
                str("copy", kReaderFile1, ": expected a file of ", bytes)),
            HasSubstr(str("found ", to))));
  }
}

TEST_F(CheckpointReading, MissingFilesAreNamed) {
  for (const auto* name :
       {kReaderFile0, kReaderFile1, "/part-00001.json",
        "/optimizer-00000-000.safetensors"}) {
    EXPECT_THAT(
        after([&](const std::string& copy) { fs::remove(copy + name); }),
        HasSubstr(str("copy", name, ": ")));
  }
  EXPECT_THAT(
      after([](const std::string& copy) {
        fs::remove(copy + kReaderFile1);
        fs::create_directory(copy + kReaderFile1);
      }),
      HasSubstr(str("copy", kReaderFile1, ": ")));
}

TEST_F(CheckpointReading, WithoutItsManifestItIsNoCheckpoint) {
  EXPECT_THAT(
      after([](const std::string& copy) {
        fs::remove(copy + "/checkpoint.json");
      }),
      HasSubstr("copy: expected a complete checkpoint, found no checkpoint"));
  EXPECT_THAT(
      after([](const std::string& copy) { fs::remove_all(copy); }),
      HasSubstr("copy: expected a complete checkpoint, found no such folder"));
}

TEST_F(CheckpointReading, DamagedJsonIsNamed) {
  for (const std::string name :
       {"/checkpoint.json", "/part-00000.json", "/part-00001.json"}) {
    const auto bytes = static_cast<std::int64_t>(fs::file_size(good_ + name));
    for (std::int64_t at = 0; at + 1 < bytes; ++at) {
      EXPECT_THAT(
          error_of([&] {
            flip(good_ + name, at);
            (void)CheckpointReader(good_);
          }),
          AnyOf(HasSubstr("step-1" + name + ": "), kSaveSame))
          << at;
      flip(good_ + name, at);
    }
    EXPECT_THAT(
        after([&](const std::string& copy) {
          fs::resize_file(copy + name, static_cast<std::uintmax_t>(bytes / 2));
        }),
        HasSubstr("copy" + name + ": "));
    EXPECT_THAT(
        after(
            [&](const std::string& copy) { fs::resize_file(copy + name, 0); }),
        HasSubstr("copy" + name + ": "));
  }
}

// Which programs read that only know safetensors.
TEST_F(CheckpointReading, VerifyFindsEveryDamagedByteOfAHeader) {
  const auto file = good_ + kReaderFile1;
  for (std::int64_t at = 0; at < offset_; ++at) {
    flip(file, at);
    EXPECT_THAT(
        error_of([&] { (void)CheckpointReader(good_).verify(); }),
        HasSubstr(kReaderFile1))
        << at;
    flip(file, at);
  }
  EXPECT_EQ(
      error_of([&] { (void)CheckpointReader(good_).verify(); }), kSaveSame);
}

TEST_F(CheckpointReading, DamageElsewhereIsNotNoticedUntilItIsRead) {
  flip(good_ + kReaderFile1, offset_ + kChunkBytes);
  const CheckpointReader reader(good_);
  const auto chunk = kChunkBytes / 8;
  const std::int64_t half = 180'000;  // Rank 1's first element.
  const auto read = [&](plan::ElementRange range) {
    return error_of([&] {
      const auto found = save_read(reader, key_, range);
      SHERD_CHECK(
          at::equal(found, whole_.narrow(0, range.begin, range.numel())),
          "other");
    });
  };
  EXPECT_EQ(read({0, half + chunk}), kSaveSame);
  EXPECT_EQ(read({half + chunk, half + chunk}), kSaveSame);
  for (const plan::ElementRange range :
       {plan::ElementRange{half + chunk, half + chunk + 1},
        {half + chunk - 1, half + chunk + 1},
        {359'999, 360'000},
        {0, 360'000}}) {
    EXPECT_THAT(
        read(range), HasSubstr(str(kReaderFile1, ": weight is damaged")));
  }
}

TEST_F(CheckpointReading, ReadsWholeChunksAndSaysHowManyBytes) {
  const CheckpointReader reader(good_);
  const auto bytes = [&](plan::ElementRange range) {
    std::vector<std::int64_t> room(static_cast<std::size_t>(range.numel()) + 1);
    return reader.read(key_, range, 0, room.data());
  };
  EXPECT_EQ(bytes({0, 0}), 0);
  EXPECT_EQ(bytes({0, 1}), kChunkBytes);
  EXPECT_EQ(bytes({131'071, 131'073}), 180'000 * 8);
  EXPECT_EQ(bytes({179'999, 180'001}), 180'000 * 8);
  EXPECT_EQ(bytes({0, 360'000}), 360'000 * 8);
}

TEST_F(CheckpointReading, ReadsAnyRange) {
  const auto whole = at::arange(360'000, at::kLong);
  const auto copy = at::arange(11, at::kInt);
  const TensorKey key{"model", "weight"};
  const TensorKey of_all{"optimizer", "of_all"};
  SavePieces pieces;
  for (const plan::ElementRange range :
       {plan::ElementRange{0, 150'000},
        {150'000, 300'000},
        {300'000, 360'000}}) {
    pieces.push_back(
        {save_piece(key, whole, range), save_piece(of_all, copy, {0, 11})});
  }
  const SaveJob job{
      .folder = scratch_.path(), .step = 5, .values = {{"a", "b"}}};
  ASSERT_TRUE(save_one(*files_, pieces, job).ok());

  const CheckpointReader reader(scratch_.path() + "/step-5");
  EXPECT_EQ(reader.manifest().step, 5);
  EXPECT_EQ(reader.manifest().world_size, 3);
  EXPECT_EQ(reader.manifest().values, job.values);
  for (int readers = 1; readers <= 4; ++readers) {
    for (int rank = 0; rank < readers; ++rank) {
      const auto mine = plan::share_of({0, 360'000}, rank, readers);
      EXPECT_TRUE(at::equal(
          save_read(reader, key, mine, rank),
          whole.narrow(0, mine.begin, mine.numel())));
      EXPECT_TRUE(at::equal(save_read(reader, of_all, {0, 11}, rank), copy));
    }
  }
}

TEST_F(CheckpointReading, ElementsThatNobodySavedAreNamed) {
  const TensorKey key{"model", "weight"};
  const auto whole = at::arange(10, at::kInt);
  const SavePieces pieces = {
      {save_piece(key, whole, {0, 4})}, {save_piece(key, whole, {6, 10})}};
  ASSERT_TRUE(
      save_one(*files_, pieces, {.folder = scratch_.path(), .step = 5}).ok());

  const CheckpointReader reader(scratch_.path() + "/step-5");
  const auto read = [&](const TensorKey& wanted, plan::ElementRange range) {
    std::vector<std::int32_t> room(100);
    return error_of([&] { (void)reader.read(wanted, range, 0, room.data()); });
  };
  EXPECT_EQ(read(key, {6, 10}), kSaveSame);
  EXPECT_THAT(
      read(key, {0, 10}),
      AllOf(
          HasSubstr("step-5: expected elements 0 to 10 of model weight"),
          HasSubstr("found none of 4 to 6 in any part")));
  EXPECT_THAT(read(key, {9, 11}), HasSubstr("found none of 10 to 11"));
  EXPECT_THAT(
      read({"model", "bias"}, {0, 1}),
      HasSubstr("step-5: expected model bias, found none"));
}

TEST_F(CheckpointReading, PartsThatContradictEachOtherAreNamed) {
  const TensorKey key{"model", "weight"};
  const auto whole = at::arange(10, at::kInt);
  const SavePieces pieces = {
      {save_piece(key, whole, {0, 5})},
      {save_piece(key, whole.to(at::kLong), {5, 10})}};
  ASSERT_TRUE(
      save_one(*files_, pieces, {.folder = scratch_.path(), .step = 5}).ok());
  EXPECT_THAT(
      error_of([&] { (void)CheckpointReader(scratch_.path() + "/step-5"); }),
      HasSubstr("part-00001.json: model weight has another dtype or shape"));
}

// Lowers how many files this process may have open, for as long as it lives.
class ReaderFileLimit {
 public:
  explicit ReaderFileLimit(rlim_t files) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit lowered = before_;
    lowered.rlim_cur = files;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ReaderFileLimit(const ReaderFileLimit&) = delete;
  ReaderFileLimit& operator=(const ReaderFileLimit&) = delete;
  ~ReaderFileLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(CheckpointReading, NeedsFewerOpenFilesThanItHas) {
  constexpr int kFiles = 200;
  constexpr rlim_t kLimit = 64;
  SaveTensors tensors;
  for (int i = 0; i < kFiles; ++i) {
    tensors[{"model", str("weight", i)}] = at::full({10}, i, at::kInt);
  }
  const SaveJob job{
      .folder = scratch_.path(), .step = 5, .options = {.file_bytes_max = 1}};
  ASSERT_TRUE(save_one(*files_, save_shares(tensors, 2), job).ok());
  const auto folder = scratch_.path() + "/step-5";
  const ReaderFileLimit limit(kLimit);
  EXPECT_EQ(save_difference(folder, tensors), kSaveSame);
  const CheckpointReader reader(folder);
  EXPECT_EQ(reader.verify(), kFiles * 10 * 4);
  std::vector<std::jthread> threads;  // Each reads all, in an order of its own.
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kFiles; ++i) {
        const auto value = (i * (2 * thread + 1)) % kFiles;
        const TensorKey key{"model", str("weight", value)};
        EXPECT_TRUE(at::equal(
            save_read(reader, key, {0, 10}), at::full({10}, value, at::kInt)));
      }
    });
  }
}

// Else training would go on from an older checkpoint.
TEST_F(CheckpointReading, TooManyOpenFilesAreNoDamage) {
  const int next = ::dup(0);  // The first descriptor that is free.
  ASSERT_GE(next, 0);
  ::close(next);
  for (const int free : {0, 1, 2}) {
    const ReaderFileLimit limit(static_cast<rlim_t>(next + free));
    try {
      const CheckpointReader reader(good_);
      EXPECT_GT(free, 0);
      EXPECT_EQ(reader.verify(), 360'000 * 8 + 2 * 12);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
      EXPECT_THAT(error.what(), HasSubstr("Too many open files"));
    }
  }
}

}  // namespace
}  // namespace sherd::ckpt
