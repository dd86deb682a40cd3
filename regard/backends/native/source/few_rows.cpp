// Functions for Python that compute in less time than calls of PyTorch take: a product of a few rows with a matrix, the
// log-sum-exp of rows, and the rotation of heads. They return None where PyTorch has to compute, or must see the computation.
#include "few_rows.h"
#include "programs.h"

namespace {
constexpr int64_t PRODUCTS_PER_THREAD = 1 << 20;  // for fewer, waking another thread takes longer
constexpr int64_t ROTATED_PER_THREAD = 1 << 15;   // numbers, likewise
constexpr int64_t MOST_NUMBERS = INT64_C(1) << 40;
constexpr int MOST_AXES = 8;
constexpr uint8_t FLOATING = 2;  // kDLFloat

// Whether these are plain tensors or parameters on the CPU that nothing watches, and no derivative is wanted.
bool may_compute(rg_object *const *tensors, int count) {
  for (int i = 0; i < count; i++)
    if (tensors[i] != py.none && class_of(tensors[i]) != py.tensor && class_of(tensors[i]) != py.parameter) return false;
  if (is_seen_by_functions() || says_something(py.PyObject_CallNoArgs(py.is_grad_enabled))) return false;
  return is_true(tensors[0], py.is_cpu);
}

bool is_negative(rg_object *x) { return says_something(py.PyObject_CallFunctionObjArgs(py.is_neg, x, nullptr)); }

// A tensor of float32 numbers.
struct Numbers {
  rg_described tensor;
  float *data = nullptr;

  bool read(rg_object *object) {
    if (!describe(object, tensor) || tensor.code != FLOATING || tensor.bits != 32 || tensor.lanes != 1 || tensor.axes > MOST_AXES)
      return false;
    data = (float *)((char *)tensor.data + tensor.offset);
    return true;
  }
  int64_t count() const {
    int64_t product = 1;
    for (int axis = 0; axis < tensor.axes; axis++) product *= tensor.size[axis];
    return product;
  }
  bool is_table(int64_t columns, int64_t rows) const {  // whether it has these columns, and at least these rows
    return tensor.axes == 2 && tensor.size[1] == columns && tensor.size[0] >= rows && is_dense();
  }
  bool is_dense() const {  // its numbers follow each other
    int64_t stride = 1;
    for (int axis = tensor.axes - 1; axis >= 0; stride *= tensor.size[axis--])
      if (tensor.size[axis] != 1 && tensor.stride[axis] != stride) return false;
    return true;
  }
};

// A new tensor like x, whose last axis has another size.
rg_object *new_output(rg_object *x, const Numbers &like, int64_t last) {
  rg_object *shape = py.PyTuple_New(like.tensor.axes);
  for (int axis = 0; shape && axis < like.tensor.axes; axis++) {
    rg_object *size = py.PyLong_FromLongLong(axis + 1 < like.tensor.axes ? like.tensor.size[axis] : last);
    if (!size || py.PyTuple_SetItem(shape, axis, size)) return py.Py_DecRef(shape), nullptr;
  }
  if (!shape) return nullptr;
  rg_object *output = py.PyObject_CallFunctionObjArgs(py.new_empty, x, shape, nullptr);
  py.Py_DecRef(shape);
  return output;
}

// The product in parts of whole blocks of outputs, which threads take one after the other.
struct Product {
  rg_operation operation;
  int32_t rows, in, out, parts, next;
  const float *x;
  float *y;

  static void work(void *data) {
    Product &p = *(Product *)data;
    for (;;) {
      const int32_t part = __atomic_fetch_add(&p.next, 1, __ATOMIC_RELAXED);
      if (part >= p.parts) return;
      const int64_t blocks = ((int64_t)p.out + 15) / 16, first = blocks * part / p.parts * 16, end = blocks * (part + 1) / p.parts * 16;
      project_columns(p.operation, p.rows, p.x, p.in, p.y, p.out, (int32_t)first, end < p.out ? (int32_t)end : p.out);
    }
  }
};

// project(x, weight, bias): x weightᵀ + bias of float32 tensors (.., in), (out, in) and (out,) or None.
rg_object *project(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 3 || !may_compute(arguments, 3) || !has_kernel()) return shared(py.none);
  Numbers x, weight, bias;
  if (!x.read(arguments[0]) || x.tensor.axes < 1 || !x.is_dense()) return shared(py.none);
  const int64_t in = x.tensor.size[x.tensor.axes - 1];
  const int64_t rows = in > 0 ? x.count() / in : 0;
  if (rows < 1 || rows > RG_FEW_ROWS) return shared(py.none);
  if (!weight.read(arguments[1]) || weight.tensor.axes != 2 || weight.tensor.size[1] != in || !weight.is_dense()) return shared(py.none);
  const int64_t out = weight.tensor.size[0];
  if (out < 1 || in > INT32_MAX / 2 || out > INT32_MAX / 2 || in * out > MOST_NUMBERS) return shared(py.none);
  const bool has_bias = arguments[2] != py.none;
  if (has_bias && (!bias.read(arguments[2]) || bias.tensor.axes != 1 || bias.tensor.size[0] != out || !bias.is_dense())) return shared(py.none);
  if (!is_quiet()) return shared(py.none);
  for (int i = 0; i < 2 + has_bias; i++)
    if (is_negative(arguments[i])) return shared(py.none);

  rg_object *output = new_output(arguments[0], x, out);
  if (!output) return nullptr;
  Numbers y;
  if (class_of(output) != py.tensor || !y.read(output)) return py.Py_DecRef(output), shared(py.none);
  const int64_t threads = rows * in * out / PRODUCTS_PER_THREAD;
  Product product = {};
  product.operation.weight = weight.data;
  product.operation.bias = has_bias ? bias.data : nullptr;
  product.rows = (int32_t)rows, product.in = (int32_t)in, product.out = (int32_t)out;
  product.parts = threads_of(threads < INT32_MAX ? (int32_t)threads : INT32_MAX);
  product.x = x.data, product.y = y.data;
  // No tensor is freed while the lock is released: the caller holds the arguments, and this function the output.
  void *const state = py.PyEval_SaveThread();
  in_threads(product.parts, Product::work, &product);
  py.PyEval_RestoreThread(state);
  return output;
}

// log_sum_exp(x): log Σ exp of each row of x (rows, numbers), (rows, 1).
rg_object *log_sum_exp(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 1 || !may_compute(arguments, 1) || !has_kernel()) return shared(py.none);
  Numbers x;
  if (!x.read(arguments[0]) || x.tensor.axes != 2 || !x.is_dense()) return shared(py.none);
  const int64_t rows = x.tensor.size[0], numbers = x.tensor.size[1];
  if (rows < 1 || numbers < 1 || x.count() > RG_MOST_SCORES || !is_quiet() || is_negative(arguments[0])) return shared(py.none);
  rg_object *output = new_output(arguments[0], x, 1);
  if (!output) return nullptr;
  Numbers y;
  if (class_of(output) != py.tensor || !y.read(output)) return py.Py_DecRef(output), shared(py.none);
  log_sum_exps(x.data, rows, (int32_t)numbers, y.data);
  return output;
}

// The rotation of heads, in parts of whole heads, which threads take one after the other.
struct Rotation {
  const rg_described *x, *y;
  const float *from, *cos, *sin;  // cosines and sines of the first position
  float *to;
  float direction;  // 1, or -1 back
  int64_t parts, next;

  static void work(void *data) {
    Rotation &r = *(Rotation *)data;
    const int64_t heads = r.x->size[0] * r.x->size[1];
    for (;;) {
      const int64_t part = __atomic_fetch_add(&r.next, 1, __ATOMIC_RELAXED);
      if (part >= r.parts) return;
      for (int64_t head = heads * part / r.parts; head < heads * (part + 1) / r.parts; head++) r.rotate(head);
    }
  }

  void rotate(int64_t head) const {
    const int64_t of_batch = x->size[1], dim = x->size[3];
    const float *of_x = from + head / of_batch * x->stride[0] + head % of_batch * x->stride[1];
    float *of_y = to + head / of_batch * y->stride[0] + head % of_batch * y->stride[1];
    for (int64_t i = 0; i < x->size[2]; i++)
      rotate_head(of_x + i * x->stride[2], of_y + i * y->stride[2], (int32_t)dim, cos + i * dim, sin + i * dim, direction);
  }
};

// rotate(x, cos, sin, first, back): row i of the heads x (batch, heads, length, dim) times row first + i of cos, plus the same
// with exchanged halves times sin, or minus it where `back` is True; cos and sin are (positions, dim).
rg_object *rotate(rg_object *, rg_object *const *arguments, intptr_t count) {
  if (count != 5 || !may_compute(arguments, 3) || class_of(arguments[3]) != py.integer || !has_kernel()) return shared(py.none);
  const int64_t first = py.PyLong_AsLong(arguments[3]);
  if (first == -1) py.PyErr_Clear();
  Numbers x, cos, sin;
  if (!x.read(arguments[0]) || x.tensor.axes != 4 || !cos.read(arguments[1]) || !sin.read(arguments[2])) return shared(py.none);
  const int64_t length = x.tensor.size[2], dim = x.tensor.size[3], numbers = x.count();
  if (dim < 2 || dim % 2 || dim > INT32_MAX || numbers < 1 || x.tensor.stride[3] != 1) return shared(py.none);
  if (first < 0 || !cos.is_table(dim, first + length) || !sin.is_table(dim, first + length)) return shared(py.none);
  if (!is_quiet() || is_negative(arguments[0])) return shared(py.none);

  rg_object *output = py.PyObject_CallFunctionObjArgs(py.empty_like, arguments[0], nullptr);
  if (!output) return nullptr;
  Numbers y;
  const bool is_like = class_of(output) == py.tensor && y.read(output) && y.tensor.axes == 4 && y.tensor.stride[3] == 1;
  if (!is_like) return py.Py_DecRef(output), shared(py.none);
  Rotation rotation = {};
  rotation.x = &x.tensor, rotation.y = &y.tensor;
  rotation.from = x.data, rotation.to = y.data;
  rotation.cos = cos.data + first * dim, rotation.sin = sin.data + first * dim;
  rotation.direction = py.PyObject_IsTrue(arguments[4]) > 0 ? -1 : 1;
  const int64_t heads = x.tensor.size[0] * x.tensor.size[1], threads = numbers / ROTATED_PER_THREAD;
  rotation.parts = threads_of((int32_t)(threads < heads ? threads : heads < INT32_MAX ? heads : INT32_MAX));
  void *const state = py.PyEval_SaveThread();
  in_threads((int32_t)rotation.parts, Rotation::work, &rotation);
  py.PyEval_RestoreThread(state);
  return output;
}
}  // namespace

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC rg_object *rg_project(void) { return new_function("project", project, "x weightᵀ + bias of a few rows, or None."); }
PUBLIC rg_object *rg_log_sum_exp(void) { return new_function("log_sum_exp", log_sum_exp, "log Σ exp of each row, or None."); }
PUBLIC rg_object *rg_rotate(void) { return new_function("rotate", rotate, "Heads, rotated to their positions or back, or None."); }
}
