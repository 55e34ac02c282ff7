// SPDX-License-Identifier: Apache-2.0
#include <sherd/autograd/checkpoint.h>

#include <map>
#include <thread>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/script.h>
#include "autograd/gradient_hook.h"
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

enum class Mode { kPlain, kCheckpoint };

// Four layers; `run` decides how each is run.
struct LayersImpl : nn::Module {
  nn::ModuleList layers;
  double dropout = 0.0;
  LayersImpl() {
    register_module("layers", layers);
    for (int i = 0; i < 4; ++i) {
      layers->push_back(nn::Linear(6, 6));
    }
  }
  at::Tensor layer(std::size_t i, const at::Tensor& x) {
    const auto y = at::tanh(layers->ptr<nn::LinearImpl>(i)->forward(x));
    return at::tanh(dropout > 0.0 ? at::dropout(y, dropout, true) + x : y + x);
  }
};
using Layers = std::shared_ptr<LayersImpl>;

at::Tensor rows() { return at::arange(18, at::kFloat).reshape({3, 6}).sin(); }

at::Tensor layer_by_layer(
    const Layers& net, Mode mode, const CheckpointOptions& options = {}) {
  auto x = rows();
  for (std::size_t i = 0; i < net->layers->size(); ++i) {
    const auto layer = [net, i](const at::Tensor& in) {
      return net->layer(i, in);
    };
    x = mode == Mode::kPlain ? layer(x) : checkpoint(options, layer, x);
  }
  return x.square().sum();
}

// Claims that forward() changes no bit of loss and gradients if its layers are checkpoints, plain
// and with units that come and go.
void expect_unchanged(
    const std::function<at::Tensor(const Layers&, Mode)>& forward) {
  const OneThread one_thread;
  const auto train = [&forward](Mode mode, int whole_max) {
    torch::manual_seed(kSeed);
    const auto net = std::make_shared<LayersImpl>();
    FakeUnitCache cache(std::max(whole_max, 0));
    if (whole_max >= 0) {
      adopt_module(*net, cache, UnitGrouping::kPerParameter);
    }
    const Trainable trainable{net, [&] { return forward(net, mode); }};
    auto first = train_once(trainable);
    EXPECT_TRUE(bit_equal(train_once(trainable), first)) << "second step";
    EXPECT_EQ(cache.pins(), 0);
    return first;
  };
  const auto expected = train(Mode::kPlain, -1);
  for (const int whole_max : {-1, 0, 1, 8}) {
    EXPECT_TRUE(bit_equal(train(Mode::kCheckpoint, whole_max), expected))
        << "units whole " << whole_max;
  }
}

// ---- The same numbers ----

TEST(Checkpoint, T08LayersAreEqualInBits) {
  expect_unchanged(
      [](const Layers& net, Mode mode) { return layer_by_layer(net, mode); });
}

TEST(Checkpoint, T08WithoutEarlyStopIsEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    return layer_by_layer(net, mode, {.early_stop = false});
  });
}

TEST(Checkpoint, T08RegionsThatShareWeightsAreEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto twice = [net](const at::Tensor& x) {
      return net->layer(1, net->layer(0, x));
    };
    if (mode == Mode::kPlain) {
      return twice(twice(rows())).sum();
    }
    return checkpoint(twice, checkpoint(twice, rows())).sum();
  });
}

at::Tensor nested(
    const Layers& net, Mode mode, std::size_t depth, at::Tensor x) {
  x = net->layer(depth, x);
  if (depth > 0) {
    const auto inner = [net, mode, depth](const at::Tensor& in) {
      return nested(net, mode, depth - 1, in);
    };
    x = mode == Mode::kPlain ? inner(x) : checkpoint(inner, x);
  }
  return net->layer(depth, x);
}

TEST(Checkpoint, T08NestedRegionsAreEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto outer = [net, mode](const at::Tensor& x) {
      return nested(net, mode, 3, x);
    };
    return (mode == Mode::kPlain ? outer(rows()) : checkpoint(outer, rows()))
        .sum();
  });
}

TEST(Checkpoint, T08SeveralOutputsAndInputsAreEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto a = net->layer(0, rows());
    const auto pair = [net](
                          const at::Tensor& x, const at::Tensor& y,
                          const at::Tensor& none) {
      EXPECT_FALSE(none.defined());
      return std::make_tuple(
          net->layer(1, x), net->layer(2, y), net->layer(3, x * y));
    };
    const auto [x, y, unused] = mode == Mode::kPlain
        ? pair(a, rows(), at::Tensor())
        : checkpoint(pair, a, rows(), at::Tensor());
    return (x * y).sum();
  });
}

TEST(Checkpoint, T08AnUnusedRegionAndOneWithoutInputsAreEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto all = [net, mode] { return layer_by_layer(net, mode); };
    if (mode == Mode::kPlain) {
      return all();
    }
    (void)checkpoint(all);
    return checkpoint(all);
  });
}

TEST(Checkpoint, T08GradientsTakenWithinARegionAreEqualInBits) {
  for (const bool early_stop : {true, false}) {
    expect_unchanged([early_stop](const Layers& net, Mode mode) {
      // A gradient penalty: fn itself runs a backward, through tensors that were left out a moment
      // ago.
      const auto penalty = [net](const at::Tensor& in) {
        const auto x = in.detach().requires_grad_();
        const auto y = net->layer(1, net->layer(0, x));
        const auto g = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
        return net->layer(2, in) + g.square().sum();
      };
      return (mode == Mode::kPlain
                  ? penalty(rows())
                  : checkpoint({.early_stop = early_stop}, penalty, rows()))
          .sum();
    });
  }
}

// LibTorch runs backwards that are nested 60 deep on other threads, and must not count ended ones.
TEST(Checkpoint, T08GradientsTakenWithinManyRegionsAreEqualInBits) {
  const auto gradient = [](const at::Tensor& x) {
    return torch::autograd::grad({x.tanh().sum()}, {x}, {}, true, true)[0];
  };
  for (int round = 0; round < 70; ++round) {
    const auto x = rows().requires_grad_();
    const auto plain = torch::autograd::grad({gradient(x).sum()}, {x})[0];
    checkpoint(gradient, x).sum().backward();
    ASSERT_TRUE(at::equal(x.grad(), plain)) << "round " << round;
  }
}

TEST(Checkpoint, T08DoubleBackwardIsEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto x = rows().requires_grad_();
    const auto two = [net](const at::Tensor& in) {
      return net->layer(1, net->layer(0, in));
    };
    const auto y = mode == Mode::kPlain ? two(x) : checkpoint(two, x);
    const auto g = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return g.square().sum() + y.sum();
  });
}

TEST(Checkpoint, T08AScriptedModuleIsEqualInBitsOnceItHasBeenOptimised) {
  torch::jit::Module script("script");
  script.register_parameter(
      "w", rows().view({6, 3}).requires_grad_(), /*is_buffer=*/false);
  script.define(R"(
    def forward(self, x):
      return torch.tanh(x.mm(self.w)).mm(self.w.t()) * torch.sigmoid(x)
  )");
  const auto run = [script](const at::Tensor& x) mutable {
    return script.forward({x}).toTensor();
  };
  const auto gradients = [script](const at::Tensor& y, const at::Tensor& x) {
    return torch::autograd::grad({y.sum()}, {x, script.attr("w").toTensor()});
  };
  const auto x = rows().requires_grad_();
  // It saves other tensors while LibTorch observes what to optimise.
  EXPECT_THAT(
      thrown_by([&] { gradients(checkpoint(run, x), x); }),
      HasSubstr("when it is run again"));
  for (int i = 0; i < 3; ++i) {
    auto plain = run;
    EXPECT_TRUE(
        bit_equal(gradients(checkpoint(run, x), x), gradients(plain(x), x)));
  }
}

// Saves an input and an output, and asks for each twice.
struct Squares : torch::autograd::Function<Squares> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context, const at::Tensor& x) {
    const auto y = x * x;
    context->save_for_backward({x, y});
    return y;
  }
  static Tensors backward(
      torch::autograd::AutogradContext* context, Tensors gradients) {
    const auto x = context->get_saved_variables()[0];
    const auto y = context->get_saved_variables()[1];
    return {gradients[0] * 2 * y / x};
  }
};

TEST(Checkpoint, T08CustomFunctionsAreEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto squares = [net](const at::Tensor& x) {
      return Squares::apply(net->layer(0, x) + 3);
    };
    return (mode == Mode::kPlain ? squares(rows())
                                 : checkpoint(squares, rows()))
        .sum();
  });
}

// A user's own checkpoint, with a backward within the node.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      LayersImpl* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    const at::NoGradGuard no_grad;
    return net->layer(0, x);
  }
  static Tensors backward(
      torch::autograd::AutogradContext* context, Tensors gradients) {
    auto* net =
        reinterpret_cast<LayersImpl*>(context->saved_data["net"].toInt());
    const at::AutoGradMode grad_mode(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    net->layer(0, x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

TEST(Checkpoint, T08ReentrantOnesOfAUserMayLieWithin) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto inside = [net](const at::Tensor& x) {
      return net->layer(2, Reentrant::apply(net->layer(1, x), net.get()));
    };
    return (mode == Mode::kPlain ? inside(rows()) : checkpoint(inside, rows()))
        .sum();
  });
}

TEST(Checkpoint, T08DropoutHasTheSameMaskAndTheSameStateAfterwards) {
  std::map<Mode, at::Tensor> states;
  expect_unchanged([&states](const Layers& net, Mode mode) {
    net->dropout = 0.5;
    const auto loss = layer_by_layer(net, mode);
    states[mode] = at::detail::getDefaultCPUGenerator().get_state();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(at::equal(
        at::detail::getDefaultCPUGenerator().get_state(), states[mode]));
    return loss;
  });
  EXPECT_TRUE(at::equal(states[Mode::kPlain], states[Mode::kCheckpoint]));
}

TEST(Checkpoint, T08TheGeneratorMayBeLeftAlone) {
  const auto net = std::make_shared<LayersImpl>();
  net->dropout = 0.5;
  const auto loss =
      layer_by_layer(net, Mode::kCheckpoint, {.preserve_rng_state = false});
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  loss.backward();
  EXPECT_FALSE(
      at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
}

class AutocastScope {
 public:
  AutocastScope() { set(true); }
  ~AutocastScope() {
    set(false);
    at::autocast::clear_cache();
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  static void set(bool enabled) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
};

TEST(Checkpoint, T08AutocastIsThatOfTheFirstRun) {
  expect_unchanged([](const Layers& net, Mode mode) {
    std::optional<AutocastScope> autocast;
    autocast.emplace();
    const auto y = layer_by_layer(net, mode);
    autocast.reset();
    const auto x = y.to(at::kFloat);
    x.register_hook([](const at::Tensor&) {
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    });
    return x;
  });
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::increment_nesting(), 1);
  at::autocast::decrement_nesting();
}

TEST(Checkpoint, T08BackwardOnAnotherThreadIsEqualInBits) {
  expect_unchanged([](const Layers& net, Mode mode) {
    const auto loss = layer_by_layer(net, mode);
    std::thread([&loss] { loss.backward({}, true); }).join();
    for (const auto& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.grad().defined());
    }
    return loss;
  });
}

TEST(Checkpoint, T08BackwardsOfOneGraphOnSeveralThreadsAddUp) {
  constexpr int kThreads = 4;
  const auto x = at::ones({3, 6}).requires_grad_();
  const auto loss =
      checkpoint([](const at::Tensor& in) { return in * in * in; }, x).sum();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&loss] {
      for (int i = 0; i < 50; ++i) {
        loss.backward({}, /*retain_graph=*/true);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_TRUE(at::equal(x.grad(), at::full({3, 6}, 3.0 * 50 * kThreads)));
}

TEST(Checkpoint, T08HooksOfSharedWeightsRunOnce) {
  const auto net = std::make_shared<LayersImpl>();
  int calls = 0;
  set_gradient_hook(
      net->parameters()[0], [&calls](const at::Tensor&) { ++calls; });
  const auto layer = [net](const at::Tensor& x) { return net->layer(0, x); };
  checkpoint(layer, checkpoint(layer, rows())).sum().backward();
  EXPECT_EQ(calls, 1);
}

// ---- How often, and for how long ----

// Counts its runs, and how many of the tensors it made are still alive.
struct Probe {
  int begun = 0;
  int ended = 0;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made;

  at::Tensor note(const at::Tensor& tensor) {
    made.emplace_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  int alive() const {
    return static_cast<int>(std::count_if(
        made.begin(), made.end(),
        [](const auto& storage) { return storage.use_count() > 0; }));
  }
};

constexpr int kTensors = 5;

// A region that saves kTensors tensors of its own, one of them its output.
at::Tensor probed(const std::shared_ptr<Probe>& probe, const at::Tensor& in) {
  ++probe->begun;
  auto x = in;
  for (int i = 0; i < kTensors; ++i) {
    x = probe->note(at::tanh(x));
  }
  ++probe->ended;
  return x;
}

TEST(Checkpoint, T08KeepsNothingBetweenForwardAndBackward) {
  const auto probe = std::make_shared<Probe>();
  const auto x = rows().requires_grad_();
  const auto fn = [probe](const at::Tensor& in) { return probed(probe, in); };
  const auto plain = probed(probe, x);
  ASSERT_EQ(probe->alive(), kTensors);
  probe->made.clear();

  const auto y = checkpoint(fn, x);
  EXPECT_EQ(probe->alive(), 1);  // y itself.
  y.sum().backward();
  EXPECT_EQ(probe->alive(), 1);
  plain.sum().backward();
}

TEST(Checkpoint, T08FreesATensorAsSoonAsBackwardHasUsedIt) {
  constexpr int kRegions = 3;
  const auto probe = std::make_shared<Probe>();
  std::vector<int> alive;
  auto x = rows().requires_grad_();
  for (int region = 0; region < kRegions; ++region) {
    x = checkpoint(
        [probe, &alive](const at::Tensor& in) {
          auto y = in;
          for (int i = 0; i < kTensors; ++i) {
            y = probe->note(at::tanh(y));
            y.register_hook([probe, &alive](const at::Tensor&) {
              alive.push_back(probe->alive());
            });
          }
          return y;
        },
        x);
  }
  const auto loss = x.sum();
  x.reset();
  EXPECT_EQ(probe->alive(), kRegions - 1);  // The inputs of regions.
  loss.backward();
  // A hook runs before its node asks for the tensor: then the inputs of the remaining regions are
  // alive, and what the recomputation of this one has left.
  std::vector<int> expected;
  for (int inputs = kRegions - 1; inputs >= 0; --inputs) {
    expected.push_back(inputs);
    for (int left = kTensors - 1; left > 0; --left) {
      expected.push_back(inputs + left);
    }
  }
  EXPECT_EQ(alive, expected);
  EXPECT_EQ(probe->alive(), 0);
}

TEST(Checkpoint, T08KeepsNothingForNodesThatAreGone) {
  constexpr int kOutputAndCollected = 1 + kTensors;
  const auto probe = std::make_shared<Probe>();
  const auto three = [probe](const at::Tensor& in) {
    return std::make_tuple(
        probed(probe, in), probed(probe, in), probed(probe, in));
  };
  for (const bool early : {true, false}) {
    SCOPED_TRACE(early);
    auto [used, dropped, kept] = checkpoint(three, rows().requires_grad_());
    if (early) {
      dropped.reset();  // Before the recomputation, which does not collect it.
    }
    used.sum().backward();
    used.reset();
    EXPECT_EQ(probe->alive(), (early ? 1 : 2) * kOutputAndCollected);
    dropped.reset();
    EXPECT_EQ(probe->alive(), kOutputAndCollected);
  }
}

TEST(Checkpoint, T08KeepsNothingForASecondBackward) {
  const auto probe = std::make_shared<Probe>();
  auto y = checkpoint(
      [probe](const at::Tensor& in) { return probed(probe, in); },
      rows().requires_grad_());
  const auto loss = y.sum();
  y.reset();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(probe->alive(), 0);
}

TEST(Checkpoint, T08LetsGoOfFnWithTheGraph) {
  const auto probe = std::make_shared<Probe>();
  const auto fn = [probe](const at::Tensor& in) { return probed(probe, in); };
  const auto owners = probe.use_count();
  auto thrown_away = checkpoint(fn, rows().requires_grad_());
  EXPECT_GT(probe.use_count(), owners);
  thrown_away.reset();
  EXPECT_EQ(probe.use_count(), owners);
  auto used = checkpoint(fn, rows().requires_grad_());
  used.sum().backward();
  EXPECT_EQ(probe.use_count(), owners);
}

TEST(Checkpoint, T08RunsOnceMoreAndOnlyAsFarAsNeeded) {
  const auto probe = std::make_shared<Probe>();
  const auto fn = [probe](const at::Tensor& in) { return probed(probe, in); };
  checkpoint(fn, rows().requires_grad_()).sum().backward();
  EXPECT_EQ(probe->begun, 2);
  EXPECT_EQ(probe->ended, 1);
  checkpoint({.early_stop = false}, fn, rows().requires_grad_())
      .sum()
      .backward();
  EXPECT_EQ(probe->begun, 4);
  EXPECT_EQ(probe->ended, 3);
}

TEST(Checkpoint, T08RunsOnceWithoutGradients) {
  const auto probe = std::make_shared<Probe>();
  const auto fn = [probe](const at::Tensor& in) { return probed(probe, in); };
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(fn, rows().requires_grad_()).requires_grad());
  EXPECT_EQ(probe->begun, 1);
}

TEST(Checkpoint, T08RunsOnceInInferenceModeWhateverTheGradMode) {
  const c10::InferenceMode inference;
  const at::AutoGradMode grad_mode(true);
  const auto probe = std::make_shared<Probe>();
  checkpoint(
      [probe](const at::Tensor& in) { return probed(probe, in); }, rows());
  EXPECT_EQ(probe->begun, 1);
}

TEST(Checkpoint, T08ASecondBackwardRunsItAgainAndAddsTheSame) {
  const auto probe = std::make_shared<Probe>();
  const auto x = rows().requires_grad_();
  const auto y =
      checkpoint([probe](const at::Tensor& in) { return probed(probe, in); }, x)
          .sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  EXPECT_EQ(probe->begun, 3);
  EXPECT_TRUE(at::equal(x.grad(), once * 2));
  EXPECT_THAT(thrown_by([&] { y.backward(); }), HasSubstr("second time"));
}

TEST(Checkpoint, T08ParametersAloneNeedNoSecondRun) {
  const auto probe = std::make_shared<Probe>();
  const auto w = rows().requires_grad_();
  const auto squares = [probe, w] {
    ++probe->begun;
    return w.view({18}).pow(2);
  };
  checkpoint(squares).sum().backward();
  EXPECT_EQ(probe->begun, 1);
  EXPECT_TRUE(at::equal(w.grad(), 2 * w));
}

TEST(Checkpoint, T08FrozenShardedParametersNeedNoSecondRunEither) {
  const auto probe = std::make_shared<Probe>();
  const auto w = rows();
  const auto expected = w.clone();
  FakeUnitCache cache;  // Takes the bytes away after each operator.
  cache.add_unit({w});
  const auto x = at::ones({3, 6}).requires_grad_();
  checkpoint(
      [probe, w](const at::Tensor& in) {
        ++probe->begun;
        return in * w.view({3, 6});
      },
      x)
      .sum()
      .backward();
  EXPECT_EQ(probe->begun, 1);
  EXPECT_EQ(cache.fills(0), 2);
  EXPECT_TRUE(at::equal(x.grad(), expected));
}

// ---- What goes wrong ----

// What backward says about a region that behaves differently the second time.
std::string refusal(
    const std::function<at::Tensor(const at::Tensor&, bool again)>& fn,
    const CheckpointOptions& options = {}) {
  const auto runs = std::make_shared<int>(0);
  const auto y = checkpoint(
      options, [fn, runs](const at::Tensor& x) { return fn(x, (*runs)++ > 0); },
      rows().requires_grad_());
  return thrown_by([&] { y.sum().backward(); });
}

TEST(Checkpoint, T08FewerTensorsAreRefused) {
  EXPECT_THAT(
      refusal([](const at::Tensor& x, bool again) {
        return again ? at::tanh(x) : at::tanh(at::tanh(x));
      }),
      AllOf(HasSubstr("saves 2 tensors"), HasSubstr("found 1")));
}

TEST(Checkpoint, T08MoreTensorsAreRefusedWithoutEarlyStop) {
  const auto fn = [](const at::Tensor& x, bool again) {
    return again ? at::tanh(at::tanh(x)) : at::tanh(x);
  };
  EXPECT_THAT(
      refusal(fn, {.early_stop = false}),
      AllOf(HasSubstr("saves 1 tensors"), HasSubstr("found more")));
}

TEST(Checkpoint, T08OtherShapesAndDtypesAreRefused) {
  EXPECT_THAT(
      refusal([](const at::Tensor& x, bool again) {
        return at::tanh(again ? x.narrow(0, 0, 2) : x);
      }),
      AllOf(
          HasSubstr("Float [3, 6] on cpu as tensor 1 of 1"),
          HasSubstr("found Float [2, 6]")));
  EXPECT_THAT(
      refusal([](const at::Tensor& x, bool again) {
        return at::tanh(again ? x.to(at::kDouble) : x);
      }),
      HasSubstr("found Double [3, 6]"));
}

TEST(Checkpoint, T08AnErrorOfTheSecondRunReachesTheCallerAndLeavesNothing) {
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(
      refusal([](const at::Tensor& x, bool again) {
        if (again) {
          (void)at::rand({4});
          throw std::runtime_error("broken by the test");
        }
        return at::tanh(x);
      }),
      HasSubstr("broken by the test"));
  EXPECT_TRUE(
      at::equal(at::detail::getDefaultCPUGenerator().get_state(), before));
  const auto x = rows().requires_grad_();
  const auto y = at::tanh(x);  // Kept again.
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Checkpoint, T08AnErrorOfTheFirstRunLeavesNothing) {
  const auto probe = std::make_shared<Probe>();
  const auto x = rows().requires_grad_();
  EXPECT_THAT(
      thrown_by([&] {
        checkpoint(
            [](const at::Tensor& in) -> at::Tensor {
              (void)at::tanh(in);
              throw std::runtime_error("broken by the test");
            },
            x);
      }),
      HasSubstr("broken by the test"));
  const auto y = probe->note(at::tanh(at::tanh(x)));
  EXPECT_EQ(probe->alive(), 1);
}

}  // namespace
}  // namespace sherd::autograd::testing
