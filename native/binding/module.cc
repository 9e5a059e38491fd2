// The Python module `ramet._native`: Executor and cpu_info, nothing else. Whatever Python passes is checked here or in
// Executor::Step; a wrong argument raises ValueError with its name.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "runtime/cpu_features.h"
#include "runtime/executor.h"

namespace nb = nanobind;

namespace ramet {
namespace {

// An array argument: keeps the array alive and shows its elements. `columns` 0: one dimension; else two, with that many columns
// (-1: any number).
template <typename T>
class Column {
 public:
  Column(const nb::object& object, const char* name, int columns = 0) {
    if (!nb::try_cast(object, array_)) Raise(name, ": is not an array in host memory");
    if (array_.dtype() != nb::dtype<T>()) Raise(name, ": has a wrong dtype");
    const size_t dims = columns == 0 ? 1 : 2;
    if (array_.ndim() != dims) Raise(name, ": must have ", dims, " dimension(s), not ", array_.ndim());
    if (columns > 0 && array_.shape(1) != static_cast<size_t>(columns)) Raise(name, ": must have ", columns, " columns");
    int64_t stride = 1;
    for (size_t d = dims; d-- > 0;) {
      if (array_.shape(d) > 1 && array_.size() > 0 && array_.stride(d) != stride) Raise(name, ": must be contiguous");
      stride *= static_cast<int64_t>(array_.shape(d));
    }
  }

  std::span<const T> span() const { return {static_cast<const T*>(array_.data()), array_.size()}; }

 private:
  nb::ndarray<nb::ro, nb::device::cpu> array_;
};

template <typename T>
nb::object ToNumpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

template <typename T>
T Get(const nb::handle& object, const char* name) {
  T value{};
  if (!nb::hasattr(object, name) || !nb::try_cast(object.attr(name), value))
    Raise("\"", name, "\" is missing or of a wrong type");
  return value;
}

RowParams ToRowParams(const nb::handle& object) {
  RowParams params;
  params.temperature = Get<double>(object, "temperature");
  params.top_k = Get<int64_t>(object, "top_k");
  params.top_p = Get<double>(object, "top_p");
  params.min_p = Get<double>(object, "min_p");
  params.seed = Get<uint64_t>(object, "seed");
  params.frequency_penalty = Get<double>(object, "frequency_penalty");
  params.presence_penalty = Get<double>(object, "presence_penalty");
  params.repetition_penalty = Get<double>(object, "repetition_penalty");
  params.bias_ids = Get<std::vector<int32_t>>(object, "bias_ids");
  params.bias_values = Get<std::vector<double>>(object, "bias_values");
  params.suppress_ids = Get<std::vector<int32_t>>(object, "suppress_ids");
  params.suppress_until = Get<int64_t>(object, "suppress_until");
  params.generated = Get<std::vector<int32_t>>(object, "generated");
  params.top_logprobs = Get<int32_t>(object, "top_logprobs");
  params.logprob_ids = Get<std::vector<int32_t>>(object, "logprob_ids");
  return params;
}

// An array for each list, None for an empty one. Takes the lists' memory.
nb::tuple ToTuple(std::vector<std::vector<float>>& lists) {
  nb::list arrays;
  for (std::vector<float>& list : lists) {
    const size_t n = list.size();
    arrays.append(n ? ToNumpy(std::move(list), {n}) : nb::object(nb::none()));
  }
  return nb::tuple(arrays);
}

KvType ParseKvType(const std::string& name) {
  if (name == "f32") return KvType::kF32;
  if (name == "f16") return KvType::kF16;
  if (name == "bf16") return KvType::kBF16;
  Raise("layout: kv_dtype \"", name, "\" is not one of f32, f16, bf16");
}

// The executor behind a lock: a second thread waits for the first one's step.
class PyExecutor {
 public:
  PyExecutor(const std::string& plan_json, const nb::sequence& weights, const nb::object& layout, int threads,
             const std::string& tier) {
    ExecutorOptions options;
    options.kv.num_pages = Get<int64_t>(layout, "num_pages");
    options.kv.page_size = Get<int64_t>(layout, "page_size");
    options.kv.max_rows = Get<int64_t>(layout, "max_rows");
    options.kv.max_row_tokens = Get<int64_t>(layout, "max_row_tokens");
    options.kv.type = ParseKvType(Get<std::string>(layout, "kv_dtype"));
    options.max_step_tokens = Get<int64_t>(layout, "max_step_tokens");
    options.threads = threads;
    options.tier = tier;

    std::vector<Column<uint8_t>> bytes;
    std::vector<Column<int32_t>> orders;
    std::vector<NamedWeight> named;
    for (const nb::handle weight : weights) {
      NamedWeight& w = named.emplace_back();
      w.name = Get<std::string>(weight, "name");
      w.format = Get<std::string>(weight, "format");
      w.shape = Get<std::vector<int64_t>>(weight, "shape");
      w.bytes = bytes.emplace_back(nb::object(weight.attr("data")), w.name.c_str()).span();
      const nb::object order = weight.attr("row_order");
      if (!order.is_none()) w.row_order = orders.emplace_back(order, w.name.c_str()).span();
      w.target_format = Get<std::string>(weight, "target_format");
    }
    const nb::gil_scoped_release release;
    executor_ = std::make_unique<Executor>(plan_json, named, options);
  }

  nb::tuple Step(const nb::object& batch, bool keep_logits) {
    const Column<int32_t> rows(batch.attr("rows"), "rows");
    const Column<int32_t> query_lens(batch.attr("query_lens"), "query_lens");
    const Column<int32_t> starts(batch.attr("starts"), "starts");
    const Column<int32_t> token_ids(batch.attr("token_ids"), "token_ids");
    const Column<int32_t> token_types(batch.attr("token_types"), "token_types");
    const Column<bool> samples(batch.attr("samples"), "samples");
    const Column<int32_t> page_updates(batch.attr("page_updates"), "page_updates", 3);
    const Column<int32_t> page_copies(batch.attr("page_copies"), "page_copies", 3);
    const Column<int32_t> score_tokens(batch.attr("score_tokens"), "score_tokens");
    const Column<int32_t> score_targets(batch.attr("score_targets"), "score_targets");
    const Column<int32_t> mask_entries(batch.attr("mask_entries"), "mask_entries");
    const Column<uint32_t> masks(batch.attr("masks"), "masks", -1);
    StepInputs inputs;
    inputs.rows = rows.span();
    inputs.query_lens = query_lens.span();
    inputs.starts = starts.span();
    inputs.token_ids = token_ids.span();
    inputs.token_types = token_types.span();
    inputs.samples = samples.span();
    inputs.page_updates = page_updates.span();
    inputs.page_copies = page_copies.span();
    for (const nb::handle item : batch.attr("new_rows")) {
      std::pair<int64_t, nb::object> entry;
      if (nb::len(item) != 2 || !nb::try_cast(nb::object(item[0]), entry.first)) Raise("new_rows: must hold (row, RowParams)");
      inputs.new_rows.emplace_back(entry.first, ToRowParams(nb::object(item[1])));
    }
    inputs.score_tokens = score_tokens.span();
    inputs.score_targets = score_targets.span();
    inputs.score_top = Get<int64_t>(batch, "score_top");
    inputs.mask_entries = mask_entries.span();
    inputs.masks = masks.span();
    inputs.keep_logits = keep_logits;

    StepResult result;
    size_t vocab = 0;
    {
      const nb::gil_scoped_release release;
      const std::lock_guard lock(mutex_);
      vocab = static_cast<size_t>(Open().vocab_size());
      result = Open().Step(inputs);
    }
    const size_t count = result.token_ids.size();
    const size_t top = static_cast<size_t>(result.top);
    const size_t scores = inputs.score_tokens.size();
    const size_t score_top = static_cast<size_t>(inputs.score_top);
    return nb::make_tuple(ToNumpy(std::move(result.token_ids), {count}), ToNumpy(std::move(result.logprobs), {count}),
                          ToNumpy(std::move(result.top_ids), {count, top}),
                          ToNumpy(std::move(result.top_logprobs), {count, top}), ToTuple(result.id_logprobs),
                          ToNumpy(std::move(result.score_logprobs), {scores}),
                          ToNumpy(std::move(result.score_top_ids), {scores, score_top}),
                          ToNumpy(std::move(result.score_top_logprobs), {scores, score_top}),
                          ToTuple(result.score_id_logprobs),
                          ToNumpy(std::move(result.embeddings), {count, static_cast<size_t>(result.embedding_size)}),
                          ToNumpy(std::move(result.logits), {keep_logits ? scores : 0, vocab}));
  }

  void Close() {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    executor_.reset();
  }

  void EnableTimings(bool on) {
    const std::lock_guard lock(mutex_);
    Open().EnableTimings(on);
  }

  nb::list Timings() {
    const std::lock_guard lock(mutex_);
    nb::list out;
    for (const SegmentTiming& timing : Open().timings()) {
      out.append(nb::make_tuple(timing.label, timing.name, timing.calls, static_cast<double>(timing.nanoseconds) * 1e-9));
    }
    return out;
  }

  nb::dict Info() {
    const std::lock_guard lock(mutex_);
    const MemoryUse memory = Open().memory();
    nb::dict out;
    out["tier"] = Open().tier();
    out["threads"] = Open().threads();
    out["vocab_size"] = Open().vocab_size();
    out["embedding_size"] = Open().embedding_size();
    out["whole_rows"] = Open().whole_rows();
    out["weight_bytes"] = memory.weight_bytes;
    out["kv_bytes_per_page"] = memory.kv_bytes_per_page;
    out["kv_bytes"] = memory.kv_bytes;
    out["arena_bytes"] = memory.arena_bytes;
    return out;
  }

 private:
  Executor& Open() {
    if (!executor_) Raise("the executor is closed");
    return *executor_;
  }

  std::mutex mutex_;
  std::unique_ptr<Executor> executor_;
};

nb::dict CpuInfo() {
  nb::list tiers;
  for (const KernelTable* tier : RunnableTiers()) tiers.append(nb::str(tier->name));
  nb::dict out;
  out["features"] = nb::cast(CpuFeatures());
  out["tiers"] = tiers;
  out["tier"] = nb::str(ChooseTier("").name);
  return out;
}

}  // namespace
}  // namespace ramet

NB_MODULE(_native, m) {
  using ramet::PyExecutor;
  m.doc() = "The native library: plans run on this machine's processor.";

  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const ramet::Error& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });

  m.def("cpu_info", &ramet::CpuInfo,
        "What this processor has: `features`, `tiers` (those that can run here, slowest first) and `tier` (the default).");

  nb::class_<PyExecutor>(m, "Executor",
                         "Runs one plan. Use `ramet.executor.native.NativeExecutor`, which speaks in the package's types.")
      .def(nb::init<const std::string&, const nb::sequence&, const nb::object&, int, const std::string&>(),
           nb::arg("plan_json"), nb::arg("weights"), nb::arg("layout"), nb::arg("threads"), nb::arg("tier"),
           "`weights`: objects with name, format, shape, data, row_order and target_format (\"\": keep). `threads` 0: all "
           "processors of the process. `tier` \"\": the fastest.")
      .def("step", &PyExecutor::Step, nb::arg("batch"), nb::arg("keep_logits"),
           "Runs a StepBatch without the GIL. Returns token_ids, logprobs, top_ids, top_logprobs, id_logprobs, score_logprobs, "
           "score_top_ids, score_top_logprobs, score_id_logprobs, embeddings and, with `keep_logits`, the logits of the scored tokens.")
      .def("close", &PyExecutor::Close, "Frees everything. Idempotent.")
      .def("enable_timings", &PyExecutor::EnableTimings, nb::arg("on"), "Turns timing slots on (cleared) or off.")
      .def("timings", &PyExecutor::Timings,
           "(kinds, name, calls, seconds) of each stretch between two barriers, in plan order.")
      .def("info", &PyExecutor::Info, "Tier, threads, vocabulary and memory in bytes.");
}
