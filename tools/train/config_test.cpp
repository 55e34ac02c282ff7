// SPDX-License-Identifier: Apache-2.0
#include "train/config.h"

#include <map>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Flags = std::map<std::string, std::string>;

TrainConfig from_flags(const Flags& flags) {
  return make_config(flags, "", "");
}
TrainConfig from_file(const std::string& text, const Flags& flags = {}) {
  return make_config(flags, "job.json", text);
}

template <typename F>
std::string call_refusal(const F& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}
std::string flag_refusal(const std::string& name, const std::string& text) {
  return call_refusal([&] { from_flags({{name, text}}); });
}
std::string file_refusal(const std::string& text) {
  return call_refusal([&] { from_file(text); });
}

TEST(TrainConfig, FlagsSetWhatTheyName) {
  const auto config = from_flags(
      {{"layers", "3"},
       {"lr", "1e-4"},
       {"quiet", "true"},
       {"budget", "512MiB"},
       {"data", "/some/path"}});
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.lr, 1e-4);
  EXPECT_TRUE(config.quiet);
  EXPECT_EQ(config.budget.count, 512LL << 20);
  EXPECT_EQ(config.data, "/some/path");
  EXPECT_EQ(config.width, TrainConfig{}.width);
}

TEST(TrainConfig, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const auto config = from_file(
      R"({"layers": 2, "width": 64, "lr": 1, "budget": "1GB", "about": {}})",
      {{"layers", "5"}});
  EXPECT_EQ(config.layers, 5);
  EXPECT_EQ(config.width, 64);
  EXPECT_EQ(config.lr, 1.0);
  EXPECT_EQ(config.budget.count, 1'000'000'000);
  EXPECT_EQ(config.heads, TrainConfig{}.heads);
}

TEST(TrainConfig, PathsInAFileBeginAtItsFolder) {
  const auto from = [](const std::string& path, const std::string& text) {
    return make_config({}, path, text);
  };
  const std::string text = R"({"run": ".", "data": "../texts/a.txt"})";
  EXPECT_EQ(from("runs/x/config.json", text).run, "runs/x");
  EXPECT_EQ(from("runs/x/config.json", text).data, "runs/texts/a.txt");
  EXPECT_EQ(from("/runs/x/config.json", text).run, "/runs/x");
  EXPECT_EQ(from("config.json", text).run, ".");
  EXPECT_EQ(from("config.json", text).data, "../texts/a.txt");
  const auto whole = from("x/job.json", R"({"run": "/a/b", "data": ""})");
  EXPECT_EQ(whole.run, "/a/b");
  EXPECT_EQ(whole.data, "");
  // Paths in flags are relative to where the command runs.
  EXPECT_EQ(make_config({{"run", "here"}}, "x/job.json", text).run, "here");
}

TEST(TrainConfig, WhatARunWritesIsReadBackEqual) {
  TrainConfig config;
  config.lr = 0.1 + 0.2;
  config.budget = {12'345};
  config.data = "/with \"quotes\" and \\";
  config.quiet = true;
  const auto text = to_json(config, {{"torch", "2.13.0"}});
  EXPECT_EQ(from_file(text), config);
  EXPECT_THAT(text, HasSubstr("\"torch\": \"2.13.0\""));
}

TEST(TrainConfig, ItsEssenceIsWhatMakesTheNumbers) {
  TrainConfig config = from_flags(
      {{"run", "here"},
       {"save-every", "5"},
       {"keep", "7"},
       {"stop-at", "3"},
       {"eval-every", "2"},
       {"deadline", "9"},
       {"quiet", "true"}});
  EXPECT_EQ(replica_invariant_config(config), TrainConfig{});
  config.lr = 1.0;
  EXPECT_NE(replica_invariant_config(config), TrainConfig{});
}

// Whoever adds an option to one of these groups decides that replicas need not agree on it.
TEST(TrainConfig, ReplicasMayDifferInWhatTheseGroupsHave) {
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& row : option_specs()) {
    names[row.group].push_back(row.name);
  }
  EXPECT_THAT(
      names["Output"],
      UnorderedElementsAre(
          "run", "save-every", "keep", "eval-every", "eval-batches",
          "sample-tokens", "peak-flops", "profile", "profile-steps", "quiet"));
  EXPECT_THAT(
      names["Ranks"],
      UnorderedElementsAre(
          "deadline", "rendezvous-deadline", "network-interface"));
}

TEST(TrainConfig, RanksMayHaveTheirOwnPathsAndWaits) {
  const auto config = from_flags(
      {{"run", "here"},
       {"data", "there"},
       {"quiet", "true"},
       {"deadline", "7"},
       {"rendezvous-deadline", "8"},
       {"network-interface", "eth1"}});
  EXPECT_EQ(rank_invariant_config(config), TrainConfig{});
  EXPECT_EQ(
      rank_invariant_config(from_flags({{"init-from", "a"}})),
      rank_invariant_config(from_flags({{"init-from", "b"}})));
  for (const auto& [name, value] :
       Flags{{"lr", "1"}, {"save-every", "5"}, {"profile", "p"}}) {
    EXPECT_NE(rank_invariant_config(from_flags({{name, value}})), TrainConfig{})
        << name;
  }
}

TEST(TrainConfig, DeadlinesAreSecondsThatClocksCanAdd) {
  EXPECT_EQ(
      flag_refusal("deadline", "0"),
      "--deadline: expected at least 1, found 0");
  EXPECT_EQ(
      flag_refusal("rendezvous-deadline", "1000001"),
      "--rendezvous-deadline: expected at most 1000000 seconds, found 1000001");
}

TEST(TrainConfig, EveryRowHasAUniqueNameAndAText) {
  Flags flags;
  for (const auto& row : option_specs()) {
    EXPECT_TRUE(flags.emplace(row.name, text_of(row, {})).second) << row.name;
    EXPECT_STRNE(row.help, "");
  }
  EXPECT_EQ(from_flags(flags), TrainConfig{});
}

TEST(TrainConfig, WrongFlagsAreNamedWithExpectedAndFound) {
  EXPECT_EQ(
      flag_refusal("layers", "3.5"),
      "--layers: expected a whole number, found '3.5'");
  EXPECT_EQ(
      flag_refusal("lr", "fast"), "--lr: expected a number, found 'fast'");
  EXPECT_THAT(flag_refusal("lr", "nan"), HasSubstr("found 'nan'"));
  EXPECT_THAT(flag_refusal("lr", "1e-3x"), HasSubstr("found '1e-3x'"));
  EXPECT_THAT(flag_refusal("layers", ""), HasSubstr("found ''"));
  EXPECT_EQ(
      flag_refusal("budget", "lots"),
      "--budget: expected a size such as 512MiB, found 'lots'");
  EXPECT_THAT(flag_refusal("nonsense", "1"), HasSubstr("--nonsense"));
}

TEST(TrainConfig, WhatBelongsToShardingIsRefusedForReplicas) {
  const auto ddp_refusal = [](const std::string& name,
                              const std::string& text) {
    return call_refusal(
        [&] { from_flags({{"strategy", "ddp"}, {name, text}}); });
  };
  EXPECT_THAT(
      ddp_refusal("dtype", "bf16"),
      HasSubstr("--dtype: expected fp32 with --strategy ddp"));
  EXPECT_THAT(ddp_refusal("budget", "1MiB"), HasSubstr("--budget"));
  EXPECT_THAT(ddp_refusal("replicate", "2"), HasSubstr("--replicate"));
  EXPECT_THAT(
      ddp_refusal("secondary-ranks", "2"),
      HasSubstr("--secondary-ranks: expected 0 with --strategy ddp"));
  EXPECT_THAT(
      ddp_refusal("prefetch", "-1"),
      HasSubstr("--prefetch: expected at least 0"));
  EXPECT_THAT(
      ddp_refusal("hook", "topk"), HasSubstr("bf16, fp16, power_sgd, found"));
  EXPECT_THAT(
      ddp_refusal("hook-rank", "0"),
      HasSubstr("--hook-rank: expected at least 1"));
  EXPECT_THAT(
      call_refusal([] { from_flags({{"hook", "power_sgd"}}); }),
      HasSubstr("--hook: expected none, mean, bf16 or fp16 without replicas"));
  EXPECT_EQ(
      from_flags({{"hook", "power_sgd"}, {"replicate", "2"}}).replicate, 2);
  EXPECT_EQ(from_flags({{"hook", "bf16"}}).hook, "bf16");
  EXPECT_THAT(
      call_refusal([] {
        from_flags(
            {{"strategy", "ddp"}, {"hook", "mean"}, {"exchange", "shm"}});
      }),
      HasSubstr("--exchange: expected auto or collective with a --hook"));
}

TEST(TrainConfig, WrongKeysAreNamedWithFileExpectedAndFound) {
  EXPECT_EQ(
      file_refusal(R"({"layers": "three"})"),
      "job.json: key 'layers': expected a whole number, found \"three\"");
  EXPECT_EQ(
      file_refusal(R"({"layers": 3.5})"),
      "job.json: key 'layers': expected a whole number, found 3.5");
  EXPECT_THAT(
      file_refusal(R"({"layers": 18446744073709551615})"),
      HasSubstr("found 18446744073709551615"));
  EXPECT_THAT(file_refusal(R"({"lr": null})"), HasSubstr("found null"));
  EXPECT_THAT(file_refusal(R"({"quiet": 1})"), HasSubstr("true or false"));
  EXPECT_THAT(file_refusal(R"({"data": 1})"), HasSubstr("a text, found 1"));
  EXPECT_THAT(file_refusal(R"({"budget": -1})"), HasSubstr("found -1"));
  EXPECT_THAT(
      file_refusal(R"({"layer": 3})"),
      AllOf(
          HasSubstr("job.json"), HasSubstr("'layer'"),
          HasSubstr("(did you mean layers?)")));
}

TEST(TrainConfig, TextsAreUtf8AsTheRunsConfigNeedsIt) {
  EXPECT_EQ(
      flag_refusal("data", "a\xFF"),
      "--data: expected a text in UTF-8, found \"a\uFFFD\"");
  EXPECT_EQ(from_flags({{"data", "\u00E4"}}).data, "\u00E4");
  TrainConfig config;
  config.data = "/a\xFF";  // From the working directory.
  EXPECT_THAT(to_json(config, {}), HasSubstr("/a\uFFFD"));
}

TEST(TrainConfig, AttentionIsAsWideAsItsHeads) {
  TrainConfig config;
  config.width = 96;
  config.heads = 4;
  EXPECT_EQ(attention_width(config), 96);
  config.head_width = 32;
  EXPECT_EQ(attention_width(config), 128);
}

TEST(TrainConfig, AFileThatIsNoJsonObjectIsRefused) {
  EXPECT_THAT(file_refusal(""), HasSubstr("expected a JSON object"));
  EXPECT_THAT(
      file_refusal("{\"layers\": }"),
      HasSubstr("job.json: expected a JSON object, found invalid JSON"));
  EXPECT_THAT(file_refusal("[1]"), HasSubstr("found a JSON array"));
  EXPECT_THAT(
      file_refusal("{\"lr\": 1e999}"),
      AllOf(HasSubstr("job.json: expected a JSON object"), HasSubstr("1e999")));
}

TEST(TrainConfig, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(
      flag_refusal("layers", "0"), "--layers: expected at least 1, found 0");
  for (const char* name : {"width", "heads", "seq", "batch", "steps"}) {
    EXPECT_THAT(flag_refusal(name, "-4"), HasSubstr("found -4"));
  }
  EXPECT_EQ(
      flag_refusal("replicate", "0"),
      "--replicate: expected at least 1, found 0");
  EXPECT_THAT(flag_refusal("lr", "-1"), HasSubstr("--lr: expected at least 0"));
  EXPECT_THAT(flag_refusal("dropout", "1"), HasSubstr("[0, 1)"));
  EXPECT_THAT(
      flag_refusal("heads", "7"),
      HasSubstr("--width: expected a multiple of --heads 7, found 256"));
  EXPECT_THAT(
      flag_refusal("beta2", "1"),
      HasSubstr("--beta2: expected a share in [0, 1), found 1"));
  EXPECT_THAT(flag_refusal("lr-min-ratio", "1.5"), HasSubstr("[0, 1], found"));
  EXPECT_EQ(flag_refusal("lr-min-ratio", "1"), "accepted");
  EXPECT_THAT(
      flag_refusal("lr-decay", "step"),
      HasSubstr("one of cosine, linear, constant, found 'step'"));
  EXPECT_THAT(flag_refusal("micro-batches", "0"), HasSubstr("at least 1"));
  EXPECT_THAT(flag_refusal("stop-at", "201"), HasSubstr("at most --steps 200"));
  EXPECT_THAT(
      flag_refusal("strategy", "half"),
      HasSubstr("full_shard, shard_grad_op, no_shard, ddp, found 'half'"));
  EXPECT_THAT(
      flag_refusal("optimizer", "lion"),
      HasSubstr("one of adamw, muon, found 'lion'"));
  EXPECT_THAT(
      flag_refusal("lr-scaling", "cubic"),
      HasSubstr("one of none, linear, sqrt, found 'cubic'"));
  EXPECT_THAT(
      flag_refusal("exchange", "nccl"),
      HasSubstr("one of auto, collective, shm, hierarchical, found 'nccl'"));
  EXPECT_EQ(
      flag_refusal("model", "rnn"),
      "--model: expected one of gpt, llama, mistral, qwen2, qwen3, found "
      "'rnn'");
  EXPECT_EQ(
      flag_refusal("dtype", "int8"),
      "--dtype: expected one of fp32, bf16, fp16, found 'int8'");
}

TEST(TrainConfig, WhatNeedsMemoryOfTheHostIsRefusedForAGpu) {
  const auto refusal = [](Flags flags) {
    flags["device"] = "cuda";
    return call_refusal([&] { from_flags(flags); });
  };
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal({{"exchange", "collective"}}), "accepted");
  EXPECT_THAT(
      refusal({{"exchange", "shm"}}),
      HasSubstr("--exchange: expected auto or collective with --device cuda"));
  EXPECT_EQ(refusal({{"memory", "1GiB"}}), "accepted");
  EXPECT_EQ(
      flag_refusal("device", "tpu"),
      "--device: expected one of cpu, cuda, found 'tpu'");
}

std::string llama_refusal(Flags flags) {
  flags["model"] = "llama";
  return call_refusal([&] { from_flags(flags); });
}

TEST(TrainConfig, LlamaTakesHeadsOfKeysAndAnIntermediateWidth) {
  const auto config = from_file(
      R"({"model": "llama", "kv-heads": 2, "heads": 4})",
      {{"intermediate", "96"}});
  EXPECT_EQ(config.model, "llama");
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.intermediate, 96);
  EXPECT_EQ(from_file(to_json(config, {})), config);
  EXPECT_EQ(llama_refusal({}), "accepted");
}

TEST(TrainConfig, WhatMakesNoLlamaIsRefused) {
  EXPECT_EQ(
      llama_refusal({{"kv-heads", "3"}}),
      "--heads: expected a multiple of --kv-heads 3, found 8");
  EXPECT_THAT(
      llama_refusal({{"kv-heads", "16"}}), HasSubstr("--kv-heads 16, found 8"));
  EXPECT_EQ(
      llama_refusal({{"kv-heads", "-1"}}),
      "--kv-heads: expected at least 0, found -1");
  EXPECT_EQ(
      llama_refusal({{"width", "40"}}),
      "--width: expected an even share for each of --heads 8 with --model "
      "llama, found 40");
  EXPECT_THAT(
      llama_refusal({{"dropout", "0.1"}}),
      HasSubstr("--dropout: expected 0 with --model llama, found 0."));
  EXPECT_THAT(llama_refusal({{"intermediate", "-2"}}), HasSubstr("found -2"));
  EXPECT_EQ(
      llama_refusal({{"head-width", "7"}}),
      "--head-width: expected an even width, found 7");
  EXPECT_EQ(llama_refusal({{"width", "40"}, {"head-width", "6"}}), "accepted");
  EXPECT_THAT(
      llama_refusal({{"rope-theta", "0"}}), HasSubstr("a positive number"));
  EXPECT_THAT(
      llama_refusal({{"sliding-window", "64"}}),
      HasSubstr("--sliding-window: expected 0 with --model llama"));
}

TEST(TrainConfig, WhatIsLlamasIsRefusedForGpt) {
  EXPECT_EQ(
      flag_refusal("kv-heads", "4"),
      "--kv-heads: expected 0 with --model gpt, found 4");
  EXPECT_THAT(
      flag_refusal("intermediate", "96"),
      HasSubstr("--intermediate: expected 0 with --model gpt"));
  EXPECT_EQ(
      flag_refusal("rope-scaling", "linear:2"),
      "--rope-scaling: expected none with --model gpt, found linear:2");
  EXPECT_EQ(
      flag_refusal("tied-head", "true"),
      "--tied-head: expected false with --model gpt, found true");
}

TEST(TrainConfig, RopeScalingIsAKindWithItsNumbers) {
  const auto llama3 = parse_rope_scaling("llama3:8.0,1,4.5,8192");
  EXPECT_EQ(llama3.kind, "llama3");
  EXPECT_EQ(llama3.factor, 8.0);
  EXPECT_EQ(llama3.low_freq_factor, 1.0);
  EXPECT_EQ(llama3.high_freq_factor, 4.5);
  EXPECT_EQ(llama3.original_positions, 8192);
  const auto yarn = parse_rope_scaling("yarn:4,32,1,32768");
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.beta_fast, 32.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_EQ(yarn.original_positions, 32768);
  EXPECT_EQ(yarn.attention_factor, 0.0);
  EXPECT_EQ(parse_rope_scaling("yarn:4,32,1,8,1.5").attention_factor, 1.5);
  EXPECT_EQ(parse_rope_scaling("linear:2.5").factor, 2.5);
  EXPECT_EQ(parse_rope_scaling("none").kind, "none");
  for (const char* text :
       {"",
        "none:1",
        "linear",
        "linear:",
        "linear:x",
        "linear:2,1",
        "linear:0.5",
        "linear:nan",
        "linear:inf",
        "yarn:inf,32,1,8",
        "yarn:4,inf,1,8",
        "llama3:8",
        "llama3:8,1,4",
        "yarn:2",
        "llama3:8,1,4,8192,1",
        "llama3:8,4,1,8192",
        "llama3:8,1,4,0",
        "llama3:8,1,4,1.5",
        "linear,2",
        "yarn:4,1,32,8",
        "yarn:4,32,1",
        "yarn:4,32,1,8,-1",
        "yarn:4,32,1,8,1,1"}) {
    EXPECT_EQ(
        call_refusal([&] { parse_rope_scaling(text); }),
        std::string(
            "--rope-scaling: expected none, linear:FACTOR, "
            "llama3:FACTOR,LOW,HIGH,ORIGINAL with LOW below HIGH, or "
            "yarn:FACTOR,FAST,SLOW,ORIGINAL[,ATTENTION] with FAST above SLOW, "
            "and a factor of at least 1, found '") +
            text + "'");
  }
}

TEST(ByteSize, AreReadInBothKindsOfUnits) {
  EXPECT_EQ(parse_bytes("0").count, 0);
  EXPECT_EQ(parse_bytes("4096").count, 4096);
  EXPECT_EQ(parse_bytes("4096B").count, 4096);
  EXPECT_EQ(parse_bytes("2KiB").count, 2048);
  EXPECT_EQ(parse_bytes("2kb").count, 2000);
  EXPECT_EQ(parse_bytes("3 MiB").count, 3LL << 20);
  EXPECT_EQ(parse_bytes("1.5GB").count, 1'500'000'000);
  EXPECT_EQ(parse_bytes("1TiB").count, 1LL << 40);
  EXPECT_EQ(
      parse_bytes("9223372036854774784").count, 9'223'372'036'854'774'784);
}

TEST(ByteSize, WhatIsNoSizeIsRefused) {
  for (const char* text :
       {"", "MiB", "-1", "1XB", "1 2MiB", "nan", "inf", "1e30GiB", "0x10",
        "9223372036854775808", "8589934592GiB"}) {
    EXPECT_THAT(
        call_refusal([&] { (void)parse_bytes(text); }),
        HasSubstr(std::string("found '") + text + "'"));
  }
}

TEST(ByteSize, FormattedOnesAreReadBack) {
  for (const std::int64_t count :
       {0LL, 1LL, 1024LL, 1536LL, 512LL << 20, 3LL << 30, 8'000'000LL}) {
    EXPECT_EQ(parse_bytes(format_bytes({count})).count, count);
  }
  EXPECT_EQ(format_bytes({512LL << 20}), "512MiB");
}

TEST(TrainConfig, ALimitForMemoryDecidesWhatOthersWouldSay) {
  EXPECT_EQ(from_flags({{"memory", "6GiB"}}).memory.count, 6LL << 30);
  for (const auto& [name, value] :
       {std::pair{"recompute-activations", "true"}, std::pair{"budget", "1MiB"},
        std::pair{"strategy", "shard_grad_op"}, std::pair{"strategy", "ddp"}}) {
    const Flags flags = {{"memory", "6GiB"}, {name, value}};
    EXPECT_THAT(
        call_refusal([&] { from_flags(flags); }), HasSubstr("with --memory"))
        << name;
  }
}

}  // namespace
}  // namespace sherd::tools
