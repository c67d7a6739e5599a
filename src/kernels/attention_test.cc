// Both forms of attention on every instruction set, against the reference and against themselves under other
// cuts.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace fathom {
namespace {

// A sequence's stored latents in blocks of 64. What was never written is NaN: no kernel may look at it.
struct Storage {
  DType dtype;
  int64_t latent, rope, tokens;
  AlignedBuffer memory;
  std::vector<const void*> blocks;

  Storage(DType dtype, int64_t latent, int64_t rope, int64_t tokens, uint64_t seed)
      : dtype(dtype), latent(latent), rope(rope), tokens(tokens) {
    const int64_t row_bytes = dtype_bytes(dtype, stride()), num_blocks = ceil_div(tokens, kAttentionTile);
    memory = AlignedBuffer(static_cast<size_t>(num_blocks * kAttentionTile * row_bytes));
    std::memset(memory.data(), 0xff, memory.size_bytes());
    const std::vector<float> values = random_floats(tokens * (latent + rope), seed);
    for (int64_t t = 0; t < tokens; ++t) {
      kernel_table(Isa::kRef).from_f32(values.data() + t * (latent + rope), latent + rope, dtype,
                                       memory.data() + t * row_bytes);
    }
    for (int64_t b = 0; b < num_blocks; ++b) blocks.push_back(memory.data() + b * kAttentionTile * row_bytes);
  }

  int64_t stride() const { return latent + rope + 4; }
  LatentBlocks view() const { return {blocks.data(), dtype, stride(), latent, rope}; }
};

struct AttentionCase {
  Isa isa;
  DType dtype;
};

std::vector<AttentionCase> cases(bool absorbed) {
  std::vector<AttentionCase> list;
  for (const Isa isa : isas_above_ref()) {
    const KernelTable& own = own_kernel_table(isa);
    if (absorbed ? own.mla_absorbed == nullptr : own.mla_per_head == nullptr) continue;
    list.push_back({isa, DType::kBf16});
    list.push_back({isa, DType::kF32});
  }
  return list;
}

std::string case_name(const testing::TestParamInfo<AttentionCase>& info) {
  return std::string(isa_name(info.param.isa)) + "_" + std::string(dtype_name(info.param.dtype));
}

class AbsorbedTest : public testing::TestWithParam<AttentionCase> {};
class PerHeadTest : public testing::TestWithParam<AttentionCase> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AbsorbedTest);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PerHeadTest);
INSTANTIATE_TEST_SUITE_P(All, AbsorbedTest, testing::ValuesIn(cases(true)), case_name);
INSTANTIATE_TEST_SUITE_P(All, PerHeadTest, testing::ValuesIn(cases(false)), case_name);

// Outputs are means of values of standard deviation 1. In BF16 a probability may round the other way: 2^-9 of
// a part of the sum; in F32 only sums and exp differ.
double tolerance(DType dtype) { return dtype == DType::kBf16 ? 0.006 : 2e-5; }

void expect_near(const std::vector<float>& got, const std::vector<float>& want, double tol,
                 const std::string& what) {
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= worst)) {
      worst = error;
      at = i;
    }
  }
  EXPECT_LE(worst, tol) << what << ": worst element " << at << ": got " << got[at] << " want " << want[at];
}

struct HeadRange {
  int64_t first, count;
};

// q: of all the heads. The range's results.
std::vector<float> run_absorbed(Isa isa, const Storage& kv, const std::vector<float>& q, HeadRange range,
                                int64_t visible) {
  const auto [first, count] = range;
  const int64_t dim = kv.latent + kv.rope;
  std::vector<float> out(static_cast<size_t>(count * kv.latent));
  AlignedBuffer scratch(static_cast<size_t>(mla_absorbed_scratch_bytes(count, kv.latent, kv.rope)));
  std::memset(scratch.data(), 0xff, scratch.size_bytes());
  const AbsorbedQuery query{.latent = q.data() + first * dim,
                            .latent_stride = dim,
                            .rope = q.data() + first * dim + kv.latent,
                            .rope_stride = dim,
                            .num_heads = count,
                            .visible = visible,
                            .scale = 1.5f / std::sqrt(static_cast<float>(dim)),
                            .out = out.data(),
                            .out_stride = kv.latent};
  kernel_table(isa).mla_absorbed(kv.view(), query, scratch.data());
  return out;
}

TEST_P(AbsorbedTest, MatchesReferenceWhateverTheHeadRange) {
  const auto [isa, dtype] = GetParam();
  const struct {
    int64_t latent, rope, heads, visible;
  } shapes[] = {{512, 64, 16, 200}, {256, 32, 16, 64}, {32, 8, 3, 1},
                {72, 6, 37, 65},    {40, 5, 17, 130},  {33, 4, 50, 63}};
  for (const auto& s : shapes) {
    const Storage kv(dtype, s.latent, s.rope, s.visible, 3 * s.visible);
    const std::vector<float> q = random_floats(s.heads * (s.latent + s.rope), 9);
    const auto want = run_absorbed(Isa::kRef, kv, q, {0, s.heads}, s.visible);
    const auto got = run_absorbed(isa, kv, q, {0, s.heads}, s.visible);
    const std::string what = "latent " + std::to_string(s.latent) + " heads " + std::to_string(s.heads) +
                             " visible " + std::to_string(s.visible);
    expect_near(got, want, tolerance(dtype), what);
    for (int64_t h = 0; h < s.heads; ++h) {
      const auto one = run_absorbed(isa, kv, q, {h, 1}, s.visible);
      ASSERT_EQ(0, std::memcmp(one.data(), got.data() + h * s.latent, one.size() * 4))
          << what << " head " << h;
    }
  }
}

TEST_P(AbsorbedTest, LaterTokensDoNotMatter) {
  const auto [isa, dtype] = GetParam();
  const Storage kv(dtype, 64, 16, 300, 4);
  const std::vector<float> q = random_floats(16 * 80, 5);
  const auto long_run = run_absorbed(isa, kv, q, {0, 16}, 100);
  const Storage cut(dtype, 64, 16, 100, 4);
  const auto short_run = run_absorbed(isa, cut, q, {0, 16}, 100);
  EXPECT_EQ(0, std::memcmp(long_run.data(), short_run.data(), long_run.size() * 4));
}

struct HeadData {
  std::vector<float> q;
  AlignedBuffer nope, v;
  int64_t nope_dim, v_dim;

  HeadData(const Storage& kv, int64_t rows, int64_t nope_dim, int64_t v_dim)
      : q(random_floats(rows * (nope_dim + kv.rope), 21)), nope_dim(nope_dim), v_dim(v_dim) {
    const auto store = [&](AlignedBuffer& to, int64_t dim, uint64_t seed) {
      to = AlignedBuffer(static_cast<size_t>(dtype_bytes(kv.dtype, kv.tokens * dim)));
      const std::vector<float> values = random_floats(kv.tokens * dim, seed);
      kernel_table(Isa::kRef).from_f32(values.data(), kv.tokens * dim, kv.dtype, to.data());
    };
    store(nope, nope_dim, 22);
    store(v, v_dim, 23);
  }
};

// Rows [first, first + rows) of queries that stand at tokens start + row.
std::vector<float> run_per_head(Isa isa, const Storage& kv, const HeadData& head, int64_t start,
                                int64_t first, int64_t rows) {
  std::vector<float> out(static_cast<size_t>(rows * head.v_dim));
  AlignedBuffer scratch(static_cast<size_t>(mla_per_head_scratch_bytes(head.nope_dim, kv.rope, head.v_dim)));
  std::memset(scratch.data(), 0xff, scratch.size_bytes());
  const int64_t dim = head.nope_dim + kv.rope;
  const PerHeadKeys keys{.nope = head.nope.data(),
                         .nope_stride = head.nope_dim,
                         .nope_dim = head.nope_dim,
                         .v = head.v.data(),
                         .v_stride = head.v_dim,
                         .v_dim = head.v_dim};
  const PerHeadQuery query{.q = head.q.data() + first * dim,
                           .q_stride = dim,
                           .rows = rows,
                           .start = start + first,
                           .scale = 1.5f / std::sqrt(static_cast<float>(dim)),
                           .out = out.data(),
                           .out_stride = head.v_dim};
  kernel_table(isa).mla_per_head(kv.view(), keys, query, scratch.data());
  return out;
}

TEST_P(PerHeadTest, MatchesReferenceWhateverTheChunk) {
  const auto [isa, dtype] = GetParam();
  const struct {
    int64_t nope, rope, v, start, rows;
  } shapes[] = {{128, 64, 128, 0, 150},
                {64, 32, 64, 100, 70},
                {24, 8, 40, 63, 2},
                {17, 6, 33, 5, 300},
                {16, 4, 16, 0, 1}};
  for (const auto& s : shapes) {
    const Storage kv(dtype, 32, s.rope, s.start + s.rows, 31);
    const HeadData head(kv, s.rows, s.nope, s.v);
    const auto want = run_per_head(Isa::kRef, kv, head, s.start, 0, s.rows);
    const auto got = run_per_head(isa, kv, head, s.start, 0, s.rows);
    const std::string what = "nope " + std::to_string(s.nope) + " start " + std::to_string(s.start) +
                             " rows " + std::to_string(s.rows);
    expect_near(got, want, tolerance(dtype), what);
    for (const int64_t chunk : {1, 7, 64, 100}) {
      std::vector<float> joined;
      for (int64_t first = 0; first < s.rows; first += chunk) {
        const auto part = run_per_head(isa, kv, head, s.start, first, std::min(chunk, s.rows - first));
        joined.insert(joined.end(), part.begin(), part.end());
      }
      ASSERT_EQ(0, std::memcmp(joined.data(), got.data(), got.size() * 4)) << what << " chunk " << chunk;
    }
  }
}

// With W_UK and W_UV the identity, the two forms are the same function.
TEST(AttentionForms, Agree) {
  const int64_t dim = 32, rope = 8, tokens = 90;
  const Storage kv(DType::kF32, dim, rope, tokens, 41);
  const std::vector<float> q = random_floats(dim + rope, 42);
  const auto absorbed = run_absorbed(Isa::kRef, kv, q, {0, 1}, tokens);
  std::vector<float> latents(static_cast<size_t>(tokens * dim)), out(dim);
  for (int64_t t = 0; t < tokens; ++t) {
    std::memcpy(latents.data() + t * dim, kv.memory.as<float>() + t * kv.stride(), dim * 4);
  }
  const PerHeadKeys keys{latents.data(), dim, dim, latents.data(), dim, dim};
  const PerHeadQuery query{q.data(), dim + rope, 1, tokens - 1, 1.5f / std::sqrt(40.0f), out.data(), dim};
  AlignedBuffer scratch(static_cast<size_t>(mla_per_head_scratch_bytes(dim, rope, dim)));
  kernel_table(Isa::kRef).mla_per_head(kv.view(), keys, query, scratch.data());
  expect_near(out, absorbed, 1e-6, "forms");
}

}  // namespace
}  // namespace fathom
