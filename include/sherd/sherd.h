// SPDX-License-Identifier: Apache-2.0
//
// Everything a training program needs: sherd's public headers in one.
#pragma once

#include <sherd/autograd/checkpoint.h>
#include <sherd/autograd/join.h>
#include <sherd/autograd/touch.h>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ckpt/lora_files.h>
#include <sherd/data/batches.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/data/corpus.h>
#include <sherd/data/distributed_sampler.h>
#include <sherd/data/tokenizer.h>
#include <sherd/ddp/replicate.h>
#include <sherd/ddp/sync_batch_norm.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/fsdp/cast_forward.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/fsdp/units.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include <sherd/models/gpt.h>
#include <sherd/models/language_model.h>
#include <sherd/models/llama.h>
#include <sherd/models/script_modules.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/schedule.h>
#include <sherd/optim/sgd.h>
#include <sherd/optim/weight_average.h>
#include <sherd/world/flight_recorder.h>
#include <sherd/world/world.h>
