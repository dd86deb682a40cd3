// What functions of C ask of Python and of PyTorch. The library is built without the headers of both: it gets the addresses
// of functions of Python's stable ABI and of DLPack's exchange interface, so one build serves every version.
#pragma once
#include "regard_native.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RG_QUIET 4  // functions that are asked before every call

typedef struct rg_object rg_object;  // PyObject

// A tensor as DLPack 1 describes it: DLTensor.
typedef struct {
  void *data;
  int32_t device, device_number;
  int32_t axes;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *size, *stride;
  uint64_t offset;  // in bytes
} rg_described;

// Functions of Python by their names, and objects, which the caller keeps alive for ever.
typedef struct {
  rg_object *(*PyCFunction_NewEx)(const void *, rg_object *, rg_object *);
  rg_object *(*PyObject_CallNoArgs)(rg_object *);
  rg_object *(*PyObject_CallFunctionObjArgs)(rg_object *, ...);
  rg_object *(*PyObject_Call)(rg_object *, rg_object *, rg_object *);
  rg_object *(*PyObject_GetAttr)(rg_object *, rg_object *);
  int (*PyObject_IsTrue)(rg_object *);
  int (*PyObject_RichCompareBool)(rg_object *, rg_object *, int);
  long (*PyLong_AsLong)(rg_object *);
  int (*PyErr_ExceptionMatches)(rg_object *);
  void (*PyErr_Clear)(void);
  void (*Py_IncRef)(rg_object *);
  void (*Py_DecRef)(rg_object *);
  rg_object *(*PyLong_FromLongLong)(long long);
  rg_object *(*PyTuple_New)(intptr_t);
  int (*PyTuple_SetItem)(rg_object *, intptr_t, rg_object *);  // it takes the reference
  void *(*PyEval_SaveThread)(void);
  void (*PyEval_RestoreThread)(void *);
  int (*describe)(void *, rg_described *);  // of DLPack: 0, or -1 with an exception of Python

  rg_object *none, *unknown, *any_exception;
  rg_object *tensor, *parameter, *integer, *text;  // the classes torch.Tensor, torch.nn.Parameter, int and str
  rg_object *is_cpu, *requires_grad;     // names of attributes
  rg_object *is_neg;                     // functions of a tensor: whether its numbers are the negatives of those in memory,
  rg_object *has_no_memory[2];           // and two that say whether it has no memory
  rg_object *empty_strided, *new_empty, *empty_like, *get_num_threads, *is_grad_enabled;
  rg_object *transforms, *function_modes;  // None outside of torch.func; whether a mode sees functions of tensors
  rg_object *quiet[RG_QUIET];            // return None, False or 0 where nothing looks at a call or changes it
  rg_object *is_included, *before_autograd;  // a function: whether a dispatch key is included; and the key that tracers use
  rg_object *forward_mode, *level;       // a module and the name of its number, below 0 outside of forward-mode derivatives
  // Names of attributes: of a pattern, and of its RowKeys.
  rg_object *row_keys, *structure, *starts, *stops, *mask, *of_call;
} rg_python;

// Store these functions and objects; called once, before any function is made.
void rg_open(const rg_python *);
rg_object *rg_class_of(rg_object *);  // a new reference to the class of an object, to test how `class_of` reads it

#ifdef __cplusplus
}

// Every function here needs Python's lock.
extern rg_python py;

constexpr int EQUAL = 2;  // Py_EQ, for PyObject_RichCompareBool

rg_object *class_of(rg_object *);
rg_object *shared(rg_object *);         // the same object, with a reference more
bool says_something(rg_object *);       // whether a result is not None, False or 0; also true for an exception
bool is_true(rg_object *, rg_object *name);
bool is_seen_by_functions();            // whether a mode sees functions of tensors, or a transform of torch.func runs
bool is_quiet();                        // whether nothing looks at calls of this thread, or changes what they mean
bool has_no_memory(rg_object *, const void *data);
bool describe(rg_object *, rg_described &);  // a tensor on the CPU with memory
int32_t threads_of(int32_t most);       // how many threads PyTorch takes, at most these

// A reference that is given back at the end of its block; NULL where an exception of Python is set, or nothing is held.
class Reference {
 public:
  explicit Reference(rg_object *x = nullptr) : object(x) {}
  ~Reference() {
    if (object) py.Py_DecRef(object);
  }
  Reference(const Reference &) = delete;
  Reference &operator=(const Reference &) = delete;
  operator rg_object *() const { return object; }

 private:
  rg_object *const object;
};

rg_object *new_function(const char *name, rg_object *(*)(rg_object *, rg_object *const *, intptr_t), const char *doc);
#endif
