// The roofline cost model: time of each kernel and stage of a forward pass on a hardware profile, as pure
// functions. Times are microseconds unless a name says otherwise. Sources and fits: profiles/*.toml and
// docs/simulator.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/model_shape.h"
#include "sim/profile.h"

namespace fathom::sim {

struct Gemm {
  double m = 0, n = 0, k = 0;
  double groups = 1;
  double sm_share = 1;    // share of the SMs that compute
  double efficiency = 1;  // of the compute roof
};
double gemm_us(const HardwareProfile& hw, const Gemm& g);
// `heads` batched BF16 products of [m, in] by [in, out].
double bmm_us(const HardwareProfile& hw, double heads, double m, double in, double out);
// Absorbed MLA core over kv_tokens summed over the micro-batch, q query tokens per request.
double mla_decode_us(const HardwareProfile& hw, const ModelShape& model, double q, double kv_tokens);
// Low-latency all-to-all of `tokens` per rank in a group of `ep` ranks.
double dispatch_us(const HardwareProfile& hw, const ModelShape& model, double tokens, double ep);
double combine_us(const HardwareProfile& hw, const ModelShape& model, double tokens, double ep);

// The stages of one decode layer of one micro-batch. dispatch and combine are the whole transfer; their *_sm
// parts (issue and receive kernels) are what holds SMs.
struct DecodeStages {
  double attn0 = 0, attn1 = 0, shared = 0, mlp = 0, dispatch = 0, combine = 0, dispatch_sm = 0,
         combine_sm = 0;
};

struct DecodeUnitShape {
  double ep = 144;                // ranks
  double slots = 288;             // expert slots over all ranks
  double tokens_per_request = 2;  // query tokens per request and step: 2 with one MTP token, 1 without
  double expert_imbalance = 1;    // f_ep: busiest rank's dispatch-receive load over the mean
  bool mtp = true;                // the MTP layer and its head run in every step
};

// One step's load over the ranks of a unit: the slowest rank decides attention, the mean decides experts.
struct DecodeLoad {
  double requests_max = 0, requests_mean = 0;  // per rank
  double kv_tokens_max = 0;                    // per rank
};

// Stages of one of two equal micro-batches (half the requests, half the KV), or of the whole batch.
DecodeStages decode_stages(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                           const DecodeLoad& load, bool two_micro_batches = true);

// A whole step: layers (decode_layer in sim/overlap_times.h), MTP layer, output heads, host gap, times
// decode_phi.
double decode_step_us(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                      double layer_us);
double decode_step_us(const HardwareProfile& hw, const ModelShape& model, const DecodeUnitShape& unit,
                      const DecodeLoad& load, bool overlap = true);  // where it pays

struct PrefillUnitShape {
  double ep = 32;
  double slots = 288;
  double expert_imbalance = 1;     // f_ep
  double cached_per_computed = 0;  // cached tokens up-projected beside each computed one
  double context_tokens = 0;       // that a computed token attends to, on average
};

// One rank's share of a prefill forward.
struct PrefillLoad {
  double tokens = 0;          // computed, not cached
  double attended_pairs = 0;  // sum over prompts of new * (cached + new / 2)
};

// Compute time of one layer with the communication kernels holding their SMs (sm_share * in_situ of the GPU),
// or on a free GPU.
double prefill_compute_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                          const PrefillLoad& load, bool free_gpu = false);
// Normal all-to-all of `tokens` per rank: a token goes once to each node that it needs, at most those of the
// unit; inside one node once to each rank, over the node's own links. A rank alone sends nothing.
struct PrefillWire {
  double dispatch_us = 0, combine_us = 0;
  double us() const { return dispatch_us + combine_us; }
};
PrefillWire prefill_all_to_all(const HardwareProfile& hw, const ModelShape& model,
                               const PrefillUnitShape& unit, double tokens);
// Computation, and the communication that prefill's overlap table leaves exposed, times the profile's bubble:
// what the micro-benchmarks and the table together leave unexplained.
double prefill_layer_us(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit,
                        const PrefillLoad& load);

// The layer's compute time is linear in tokens and pairs to well under 1 %: c0 + a*tokens + b*pairs. What the
// table leaves exposed, at the unit's mean context, is linear in tokens from some hundred on, as long as
// attention outweighs the network.
// Balancers and the request-level simulation use this form.
struct LayerCost {
  double c0_us = 0, a_us_per_token = 0, b_us_per_pair = 0;
  double exposed_us_per_token = 0, exposed_from_tokens = 0;
  double rank_us(double tokens, double pairs) const {
    return a_us_per_token * tokens + b_us_per_pair * pairs;
  }
  double exposed_us(double tokens) const {
    return exposed_us_per_token * std::max(0.0, tokens - exposed_from_tokens);
  }
};
LayerCost fit_prefill_cost(const HardwareProfile& hw, const ModelShape& model, const PrefillUnitShape& unit);
// A forward of all layers whose slowest rank needs rank_us_max (rank_us of its share) for `tokens`.
double prefill_forward_us(const HardwareProfile& hw, const ModelShape& model, const LayerCost& cost,
                          double rank_us_max, double tokens);

// KV tokens that fit on one rank beside weights and reserve.
double kv_room_tokens(const HardwareProfile& hw, const ModelShape& model, double slots_per_rank, bool mtp);

// The all-wire bound of the ISCA 2025 paper: one dispatch (1 B) and combine (2 B) of `tokens` to nine
// experts.
double isca_all_to_all_us(double tokens, double experts, double hidden, double gb_per_s);

}  // namespace fathom::sim
