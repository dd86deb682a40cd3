// What functions of C ask of Python and of PyTorch; see interpreter.h.
#include "interpreter.h"

#include <stdlib.h>

rg_python py;

namespace {
constexpr int32_t CPU = 1;       // kDLCPU
constexpr int FAST_CALL = 0x80;  // METH_FASTCALL
// The address of a tensor without memory is its offset in bytes, far below this; most real addresses lie above.
constexpr uint64_t LOW = UINT64_C(1) << 44;

// PyObject: in every version of the stable ABI the class follows the count of references.
struct Head {
  intptr_t references;
  rg_object *kind;
};

// PyMethodDef.
struct Definition {
  const char *name;
  rg_object *(*function)(rg_object *, rg_object *const *, intptr_t);
  int flags;
  const char *doc;
};
}  // namespace

rg_object *class_of(rg_object *x) { return ((const Head *)x)->kind; }

rg_object *shared(rg_object *x) {
  py.Py_IncRef(x);
  return x;
}

bool says_something(rg_object *answer) {
  if (!answer) {
    py.PyErr_Clear();
    return true;
  }
  const bool found = answer != py.none && py.PyObject_IsTrue(answer) != 0;
  py.Py_DecRef(answer);
  return found;
}

bool is_true(rg_object *x, rg_object *name) { return says_something(py.PyObject_GetAttr(x, name)); }

bool is_seen_by_functions() {
  return says_something(py.PyObject_CallNoArgs(py.function_modes)) || says_something(py.PyObject_CallNoArgs(py.transforms));
}

bool is_quiet() {
  for (rg_object *function : py.quiet)
    if (says_something(py.PyObject_CallNoArgs(function))) return false;
  if (says_something(py.PyObject_CallFunctionObjArgs(py.is_included, py.before_autograd, nullptr))) return false;
  rg_object *level = py.PyObject_GetAttr(py.forward_mode, py.level);
  if (!level) return py.PyErr_Clear(), false;
  const long number = py.PyLong_AsLong(level);
  py.Py_DecRef(level);
  return number < 0;
}

// These functions take time, so they are not called for an address that must be real.
bool has_no_memory(rg_object *x, const void *data) {
  if ((uint64_t)data >= LOW) return false;
  for (rg_object *function : py.has_no_memory)
    if (says_something(py.PyObject_CallFunctionObjArgs(function, x, nullptr))) return true;
  return false;
}

bool describe(rg_object *x, rg_described &found) {
  if (py.describe(x, &found)) return py.PyErr_Clear(), false;
  if (found.device != CPU || !found.data || !found.stride) return false;
  return !has_no_memory(x, found.data);
}

int32_t threads_of(int32_t most) {
  if (most < 2) return 1;
  rg_object *answer = py.PyObject_CallNoArgs(py.get_num_threads);
  if (!answer) return py.PyErr_Clear(), 1;
  const long threads = py.PyLong_AsLong(answer);
  py.Py_DecRef(answer);
  return threads < 1 ? 1 : threads < most ? (int32_t)threads : most;
}

rg_object *new_function(const char *name, rg_object *(*function)(rg_object *, rg_object *const *, intptr_t), const char *doc) {
  Definition *definition = (Definition *)malloc(sizeof(Definition));  // Python reads it while the function lives
  if (!definition) return nullptr;
  *definition = {name, function, FAST_CALL, doc};
  return py.PyCFunction_NewEx(definition, nullptr, nullptr);
}

#define PUBLIC __attribute__((visibility("default")))
extern "C" {
PUBLIC void rg_open(const rg_python *python) { py = *python; }
PUBLIC rg_object *rg_class_of(rg_object *x) { return shared(class_of(x)); }
}
