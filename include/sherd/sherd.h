// SPDX-License-Identifier: Apache-2.0
//
// Everything a training program needs: sherd's public headers in one.
#pragma once

#include <sherd/access/checkpoint.h>
#include <sherd/access/touch.h>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/comm/exchange_kind.h>
#include <sherd/comm/shm_backend/make_backend.h>
#include <sherd/comm/world.h>
#include <sherd/data/batches.h>
#include <sherd/data/corpus.h>
#include <sherd/ddp/replicate.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include <sherd/models/gpt.h>
#include <sherd/models/language_model.h>
#include <sherd/models/llama.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/schedule.h>
#include <sherd/optim/sgd.h>
#include <sherd/shard/activation_checkpointing.h>
#include <sherd/shard/fully_shard.h>
#include <sherd/shard/units.h>
