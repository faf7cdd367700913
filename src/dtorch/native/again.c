/* A call that was made before, answered without Python: what `dispatch.py` does for it, step by step.

   dispatch(func, types, args, kwargs) scans the arguments into the same key as `dispatch_door.scan`, looks it up among
   the recipes, appends a node to what is pending as `GraphConstructor.again` does, and wraps the one operand that
   comes out as `tensor.wrap` does. Whatever is not of that kind (a new call, plain tensors, several outputs,
   handlers, modes) is passed on, untouched, to the Python function, which remains the reference:
   tests/native compares the two call by call.

   Functions that return a pointer give NULL without an exception for "not of that kind". */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#if PY_VERSION_HEX >= 0x030C0000
#define OBJECT Py_T_OBJECT_EX
#else
#define OBJECT T_OBJECT_EX
#endif

#define MAX_KEY 96
#define MAX_INPUTS 32

/* What Python hands over, by the names that `dispatch.py` uses. */
#define KNOWN(X)                                                                                                       \
    X(slow) X(doors) X(inside) X(recipes) X(Tensor) X(PlainTensor) X(Operand) X(Scalar) X(Start) X(Generator)          \
    X(Door) X(Graph) X(Constructor) X(Pending) X(Recipe) X(OutputPlan) X(Buffer) X(true_key) X(false_key)              \
    X(make_wrapper) X(forbid_data_pointer) X(num_modes) X(current_backward) X(default_dtype) X(deterministic)          \
    X(imprecise) X(inference) X(view) X(torch_view)
/* Attributes that are looked up, as interned strings. */
#define NAMES(X)                                                                                                       \
    X(freed) X(buffer) X(parts) X(value) X(number) X(length) X(acquire) X(release) X(max_bytes) X(max_nodes)           \
    X(relieve) X(symbol) X(stride) X(hex) X(is_inference) X(__name__)
/* Slots, (class, name), read where they lie in the object; all of them always hold something. */
#define SLOTS(X)                                                                                                       \
    X(Tensor, _operand) X(Tensor, _graph)                                                                              \
    X(Operand, spec) X(Operand, shared) X(Operand, offset) X(Operand, converted) X(Buffer, upstream)                   \
    X(Door, handler) X(Door, free) X(Door, starts)                                                                     \
    X(Graph, constructor) X(Graph, lock)                                                                               \
    X(Constructor, _now) X(Constructor, _around) X(Constructor, pending) X(Pending, nodes) X(Pending, nbytes)          \
    X(Recipe, lazy) X(Recipe, simple) X(Recipe, views) X(Recipe, nbytes)                                               \
    X(OutputPlan, spec) X(OutputPlan, input) X(OutputPlan, offset) X(OutputPlan, moved_by)

#define DECLARE(name) PyObject *name;
#define OFFSET(class, name) Py_ssize_t class##_##name;
static struct { KNOWN(DECLARE) } known;
static struct { NAMES(DECLARE) } names;
typedef struct { SLOTS(OFFSET) } Offsets;
static Offsets at;
static PyObject *zero;

#define GET(object, name) PyObject_GetAttr((object), names.name)
/* What a slot holds, borrowed. */
#define SLOT(object, class, name) (*(PyObject **)((char *)(object) + at.class##_##name))

/* The scan of one call. Graph, keys and inputs are owned: while the lock is waited for, another thread may give the
   tensors others. */
typedef struct {
    PyObject *door, *first;                                                       /* borrowed, as is the first tensor */
    PyObject *graph;
    PyObject *key[MAX_KEY], *operands[MAX_INPUTS], *scalars[MAX_INPUTS];
    int num_keys, num_operands, num_scalars;
} Scan;

static void clear(Scan *scan) {
    while (scan->num_keys) Py_DECREF(scan->key[--scan->num_keys]);
    while (scan->num_operands) Py_DECREF(scan->operands[--scan->num_operands]);
    while (scan->num_scalars) Py_DECREF(scan->scalars[--scan->num_scalars]);
    Py_CLEAR(scan->graph);
}

/* Take an item of the key, which is owned; 0 where there is none or no room. */
static int key(Scan *scan, PyObject *item) {
    if (item == NULL || scan->num_keys == MAX_KEY - 1) {                       /* one place is for the surroundings */
        Py_XDECREF(item);
        return 0;
    }
    scan->key[scan->num_keys++] = item;
    return 1;
}

static int scalar(Scan *scan, PyObject *value) {
    PyObject *made = value ? PyObject_CallOneArg(known.Scalar, value) : NULL;
    Py_XDECREF(value);
    if (made == NULL || scan->num_scalars == MAX_INPUTS) {
        Py_XDECREF(made);
        return 0;
    }
    scan->scalars[scan->num_scalars++] = made;
    return 1;
}

/* An operand may be recorded unless it was converted before or is a copied view. */
static int scan_tensor(Scan *scan, PyObject *tensor) {
    PyObject *operand = SLOT(tensor, Tensor, _operand), *graph = SLOT(tensor, Tensor, _graph), *shared;
    if (operand == NULL || graph == NULL || scan->num_operands == MAX_INPUTS) return 0;
    if (scan->graph == NULL) {
        scan->graph = Py_NewRef(graph);
        scan->first = tensor;
    }
    shared = SLOT(operand, Operand, shared);
    if (scan->graph != graph || SLOT(operand, Operand, converted) != Py_None) return 0;
    if (shared != Py_None && SLOT(shared, Buffer, upstream) != Py_None) return 0;
    scan->operands[scan->num_operands++] = Py_NewRef(operand);
    return key(scan, Py_NewRef(SLOT(operand, Operand, spec)));
}

static int scan_value(Scan *scan, PyObject *value, PyObject *name);

/* A list or a tuple: whole numbers as they are, anything else item by item. */
static int scan_sequence(Scan *scan, PyObject *value) {
    PyObject **items = PySequence_Fast_ITEMS(value);
    Py_ssize_t i = 0, length = PySequence_Fast_GET_SIZE(value);
    while (i < length && PyLong_CheckExact(items[i])) i++;
    if (i == length) return key(scan, PySequence_Tuple(value));
    if (!key(scan, Py_BuildValue("(On)", Py_TYPE(value), length))) return 0;
    for (i = 0; i < length; i++)
        if (!scan_value(scan, items[i], NULL)) return 0;
    return 1;
}

/* Whether a number is an input of the plan: see `dispatch_door._is_input`. -1 with an exception. */
static int is_input(Scan *scan, double number, PyObject *name) {
    if (name == NULL || !(number != 0.0 && number - number == 0.0)) return 0;      /* neither 0, infinite nor NaN */
    PyObject *free = SLOT(scan->door, Door, free);
    return PySet_GET_SIZE(free) == 0 ? 0 : PySet_Contains(free, name);
}

/* Write one argument into the key; `name` is its name or position, NULL within a sequence. */
static int scan_value(Scan *scan, PyObject *value, PyObject *name) {
    PyTypeObject *kind = Py_TYPE(value);
    if (kind == &PyLong_Type || value == Py_None) return key(scan, Py_NewRef(value));
    if (kind == &PyBool_Type) return key(scan, Py_NewRef(value == Py_True ? known.true_key : known.false_key));
    if (kind == (PyTypeObject *)known.Tensor) return scan_tensor(scan, value);
    if (kind == &PyList_Type || kind == &PyTuple_Type) return scan_sequence(scan, value);
    if (kind == &PyFloat_Type) {
        int free = is_input(scan, PyFloat_AS_DOUBLE(value), name);
        if (free == 1) return scalar(scan, Py_NewRef(value)) && key(scan, Py_NewRef(kind));
        return free == 0 && key(scan, PyObject_CallMethodNoArgs(value, names.hex));
    }
    if (kind == (PyTypeObject *)known.Generator && name != NULL)
        return scalar(scan, Py_NewRef(value)) && key(scan, Py_NewRef(kind));
    if (kind == (PyTypeObject *)known.Start) {
        PyObject *bound = GET(value, length), *item = bound == NULL ? NULL : Py_BuildValue("(ON)", kind, bound);
        return key(scan, item) && scalar(scan, GET(value, number));
    }
    if (kind == &PyComplex_Type || PyObject_TypeCheck(value, (PyTypeObject *)known.PlainTensor)) return 0;
    return key(scan, Py_NewRef(value));
}

static int scan_all(Scan *scan, PyObject *args, PyObject *kwargs) {
    PyObject *name, *value;
    Py_ssize_t i;
    int taken;
    for (i = 0; i < PyTuple_GET_SIZE(args); i++) {
        if ((name = PyLong_FromSsize_t(i)) == NULL) return 0;
        taken = scan_value(scan, PyTuple_GET_ITEM(args, i), name);
        Py_DECREF(name);
        if (!taken) return 0;
    }
    i = 0;
    while (kwargs != NULL && PyDict_Next(kwargs, &i, &name, &value))
        if (!key(scan, Py_NewRef(name)) || !scan_value(scan, value, name)) return 0;
    return scan->graph != NULL;
}

/* Whether a function gives an object, or an equal one. */
static int gives(PyObject *function, PyObject *expected) {
    PyObject *now = PyObject_CallNoArgs(function);
    int answer = now == NULL ? -1 : now == expected ? 1 : PyObject_RichCompareBool(now, expected, Py_EQ);
    Py_XDECREF(now);
    return answer == 1;
}

/* Whether backward and settings are those that `GraphConstructor.enter` saw last. */
static int same_surroundings(PyObject *constructor) {
    PyObject *now = SLOT(constructor, Constructor, _now);
    if (!PyTuple_CheckExact(now) || PyTuple_GET_SIZE(now) != 4) return 0;
    Py_INCREF(now);
    int answer = gives(known.current_backward, PyTuple_GET_ITEM(now, 0)) &&
                 gives(known.default_dtype, PyTuple_GET_ITEM(now, 1)) &&
                 gives(known.deterministic, PyTuple_GET_ITEM(now, 2)) &&
                 gives(known.imprecise, PyTuple_GET_ITEM(now, 3));
    Py_DECREF(now);
    return answer;
}

/* The recipe of the call, owned; the key is given to the tuple that it is looked up by. */
static PyObject *recipe_of(Scan *scan, PyObject *constructor) {
    PyObject *full, *recipe;
    scan->key[scan->num_keys++] = Py_NewRef(SLOT(constructor, Constructor, _around));
    if ((full = PyTuple_New(scan->num_keys)) == NULL) return NULL;
    for (int i = 0; i < scan->num_keys; i++) PyTuple_SET_ITEM(full, i, scan->key[i]);
    scan->num_keys = 0;
    recipe = Py_XNewRef(PyDict_GetItemWithError(known.recipes, full));
    Py_DECREF(full);
    return recipe;
}

/* The numbers of an input are `parts.value`. */
static PyObject *number_of(PyObject *input) {
    PyObject *parts = GET(input, parts), *value = parts == NULL ? NULL : GET(parts, value);
    Py_XDECREF(parts);
    return value;
}

/* The sum of two numbers, both owned. */
static PyObject *sum(PyObject *a, PyObject *b) {
    PyObject *made = a == NULL || b == NULL ? NULL : PyNumber_Add(a, b);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return made;
}

/* `OutputPlan.offset_of`. */
static PyObject *offset_of(PyObject *plan, PyObject *base, PyObject *operands) {
    PyObject *offset = PyNumber_Add(SLOT(base, Operand, offset), SLOT(plan, OutputPlan, offset));
    PyObject *moved = SLOT(plan, OutputPlan, moved_by), *number, *way;
    if (moved == Py_None || offset == NULL) return offset;
    number = number_of(PyList_GET_ITEM(operands, PyLong_AsSsize_t(PyTuple_GET_ITEM(moved, 0))));
    way = number == NULL ? NULL : PyNumber_Multiply(PyTuple_GET_ITEM(moved, 1), number);
    Py_XDECREF(number);
    return sum(offset, way);
}

/* The one output: a fresh operand, or a view of an input. */
static PyObject *output_of(PyObject *plan, int views, PyObject *operands) {
    PyObject *spec = SLOT(plan, OutputPlan, spec), *base, *shared, *offset, *made = NULL;
    if (!views) return PyObject_CallOneArg(known.Operand, spec);
    base = PyList_GET_ITEM(operands, PyLong_AsSsize_t(SLOT(plan, OutputPlan, input)));
    shared = Py_NewRef(SLOT(base, Operand, shared));
    if (shared == Py_None) Py_SETREF(shared, GET(base, buffer));
    offset = shared == NULL ? NULL : offset_of(plan, base, operands);
    if (offset != NULL) {
        PyObject *given[] = {spec, Py_None, shared, offset};
        made = PyObject_Vectorcall(known.Operand, given, 4, NULL);
    }
    Py_XDECREF(offset);
    Py_XDECREF(shared);
    return made;
}

/* Code object and instruction of the nearest caller outside dtorch and torch, as `confirm.users_place` says. */
static PyObject *users_place(void) {
    PyFrameObject *frame = PyEval_GetFrame(), *back;
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyObject *globals = PyFrame_GetGlobals(frame), *place = NULL;
        PyObject *module = PyDict_GetItemWithError(globals, names.__name__);
        PyObject *inside = PyObject_GetItem(known.inside, module == NULL ? Py_None : module);
        Py_DECREF(globals);
        if (inside == NULL) {
            Py_DECREF(frame);
            return NULL;
        }
        Py_DECREF(inside);
        if (inside != Py_True) {
            place = Py_BuildValue("(Ni)", PyFrame_GetCode(frame), PyFrame_GetLasti(frame));
            Py_DECREF(frame);
            return place;
        }
        back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_RETURN_NONE;
}

/* Whether a number is above the limit that the class of what is pending names; -1 with an exception. */
static int above(PyObject *number, PyObject *name) {
    PyObject *limit = PyObject_GetAttr(known.Pending, name);
    int answer = number == NULL || limit == NULL ? -1 : PyObject_RichCompareBool(number, limit, Py_GT);
    Py_XDECREF(limit);
    return answer;
}

/* Append the node; more than may be pending runs. 0 with an exception. */
static int append(PyObject *constructor, PyObject *recipe, PyObject *operands, PyObject *output) {
    PyObject *pending = Py_NewRef(SLOT(constructor, Constructor, pending)), *place = users_place(), *nbytes, *count;
    PyObject *node = place == NULL ? NULL : Py_BuildValue("(OO(O)N)", recipe, operands, output, place);
    int added = node != NULL && PyList_Append(SLOT(pending, Pending, nodes), node) == 0, much = 0;
    Py_XDECREF(node);
    if (added) {
        nbytes = PyNumber_Add(SLOT(pending, Pending, nbytes), SLOT(recipe, Recipe, nbytes));
        count = PyLong_FromSsize_t(PyList_GET_SIZE(SLOT(pending, Pending, nodes)));
        much = above(nbytes, names.max_bytes);
        if (much == 0) much = above(count, names.max_nodes);
        if (nbytes != NULL) Py_XSETREF(SLOT(pending, Pending, nbytes), nbytes);
        Py_XDECREF(count);
        if (much == 1) {
            PyObject *done = PyObject_CallMethodNoArgs(constructor, names.relieve);
            much = done == NULL ? -1 : 0;
            Py_XDECREF(done);
        }
    }
    Py_DECREF(pending);
    return added && much == 0;
}

/* What a tensor is made of, with stride and offset of its own. */
static PyObject *moved(PyObject *symbol, PyObject *stride, PyObject *offset) {
    PyObject *made = PyTuple_New(PyTuple_GET_SIZE(symbol));
    for (Py_ssize_t i = 0; made != NULL && i < PyTuple_GET_SIZE(symbol); i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(i == 2 ? stride : i == 3 ? offset : PyTuple_GET_ITEM(symbol, i)));
    return made;
}

/* `tensor.wrap`. */
static PyObject *wrap(PyObject *operand, PyObject *graph) {
    PyObject *spec = SLOT(operand, Operand, spec), *offset = SLOT(operand, Operand, offset), *done;
    PyObject *symbol = GET(spec, symbol), *tensor;
    if (symbol != NULL && PyObject_IsTrue(offset)) {
        PyObject *stride = GET(spec, stride);
        Py_SETREF(symbol, stride == NULL ? NULL : moved(symbol, stride, offset));
        Py_XDECREF(stride);
    }
    tensor = symbol == NULL ? NULL : PyObject_Call(known.make_wrapper, symbol, NULL);
    Py_XDECREF(symbol);
    if (tensor == NULL) return NULL;
    done = PyObject_CallOneArg(known.forbid_data_pointer, tensor);
    if (done == NULL) {
        Py_DECREF(tensor);
        return NULL;
    }
    Py_DECREF(done);
    Py_XSETREF(SLOT(tensor, Tensor, _operand), Py_NewRef(operand));
    Py_XSETREF(SLOT(tensor, Tensor, _graph), Py_NewRef(graph));
    return tensor;
}

/* A view of a normal tensor cannot be an inference tensor: Python makes it. */
static int may_view(Scan *scan) {
    PyObject *answer = PyObject_CallNoArgs(known.inference);
    int inference = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (inference <= 0) return inference == 0;
    answer = PyObject_CallMethodNoArgs(scan->first, names.is_inference);
    inference = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return inference == 1;
}

static PyObject *operands_of(Scan *scan) {
    PyObject *operands = PyList_New(scan->num_operands + scan->num_scalars);
    if (operands == NULL) return NULL;
    for (int i = 0; i < scan->num_operands; i++) PyList_SET_ITEM(operands, i, Py_NewRef(scan->operands[i]));
    for (int i = 0; i < scan->num_scalars; i++)
        PyList_SET_ITEM(operands, scan->num_operands + i, Py_NewRef(scan->scalars[i]));
    return operands;
}

/* Record a call that has one operand as output; the graph's lock is held. */
static PyObject *record(Scan *scan, PyObject *constructor) {
    PyObject *recipe, *plan, *operands, *output = NULL;
    if (!same_surroundings(constructor) || (recipe = recipe_of(scan, constructor)) == NULL) return NULL;
    plan = Py_NewRef(SLOT(recipe, Recipe, simple));
    int views = SLOT(recipe, Recipe, views) == Py_True;
    if (SLOT(recipe, Recipe, lazy) == Py_True && plan != Py_None && (!views || may_view(scan)) &&
        (operands = operands_of(scan)) != NULL) {
        output = output_of(plan, views, operands);
        if (output != NULL && !append(constructor, recipe, operands, output)) Py_CLEAR(output);
        Py_DECREF(operands);
    }
    Py_DECREF(plan);
    Py_DECREF(recipe);
    return output;
}

static PyObject *recorded(Scan *scan) {
    PyObject *constructor = Py_NewRef(SLOT(scan->graph, Graph, constructor)), *lock = SLOT(scan->graph, Graph, lock);
    PyObject *output = NULL, *tensor = NULL, *done = PyObject_CallMethodNoArgs(lock, names.acquire);
    if (done != NULL) {
        PyObject *kind, *value, *trace;                         /* an exception waits while the lock is given back */
        Py_DECREF(done);
        output = record(scan, constructor);
        PyErr_Fetch(&kind, &value, &trace);
        done = PyObject_CallMethodNoArgs(lock, names.release);
        Py_XDECREF(done);
        if (kind != NULL) PyErr_Restore(kind, value, trace);
    }
    Py_DECREF(constructor);
    if (output != NULL) tensor = wrap(output, scan->graph);
    Py_XDECREF(output);
    return tensor;
}

/* The tensor that a call gives; NULL where Python has to answer it, or with an exception. */
static PyObject *answer(PyObject *func, PyObject *args, PyObject *kwargs) {
    PyObject *number, *starts, *freed = NULL, *tensor = NULL;
    Scan scan;
    scan.graph = NULL;
    scan.num_keys = scan.num_operands = scan.num_scalars = 0;
    if (!PyTuple_CheckExact(args) || (kwargs != NULL && !PyDict_CheckExact(kwargs))) return NULL;
    if ((number = PyLong_FromVoidPtr(func)) == NULL) return NULL;
    scan.door = PyDict_GetItemWithError(known.doors, number);
    Py_DECREF(number);
    if (scan.door == NULL || SLOT(scan.door, Door, handler) != Py_None || !gives(known.num_modes, zero)) return NULL;
    starts = SLOT(scan.door, Door, starts);
    if (starts != Py_None) {
        if ((freed = PyObject_CallMethodOneArg(starts, names.freed, args)) == NULL) return NULL;
        args = freed;
    }
    key(&scan, Py_NewRef(scan.door));
    if (scan_all(&scan, args, kwargs)) tensor = recorded(&scan);
    clear(&scan);
    Py_XDECREF(freed);
    return tensor;
}

static PyObject *dispatch(PyObject *self, PyObject *const *given, Py_ssize_t count, PyObject *keywords) {
    if (keywords == NULL && (count == 3 || count == 4)) {
        PyObject *tensor = answer(given[0], given[2], count == 3 || given[3] == Py_None ? NULL : given[3]);
        if (tensor != NULL || PyErr_Occurred()) return tensor;
    }
    return PyObject_Vectorcall(known.slow, given, count, keywords);
}

/* `Tensor.view`: sizes, which most calls give, are torch's business; anything else Python looks at. */
static PyObject *view(PyObject *tensor, PyObject *const *given, Py_ssize_t count, PyObject *keywords) {
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    int sizes = named == 0 && count > 0 && PyLong_CheckExact(given[0]);
    PyObject *all[MAX_KEY + 2] = {NULL, tensor};
    if (count + named > MAX_KEY)
        return PyErr_Format(PyExc_RuntimeError, "view(): %zd sizes, a tensor has at most 64 dims", count + named);
    memcpy(all + 2, given, (count + named) * sizeof(PyObject *));
    return PyObject_Vectorcall(sizes ? known.torch_view : known.view, all + 1,
                               (count + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
}

static PyMethodDef view_method = {"view", (PyCFunction)(void (*)(void))view, METH_FASTCALL | METH_KEYWORDS, NULL};

/* The method that stands for `known.view`, with its text. */
static PyObject *view_of(PyObject *self, PyObject *class) {
    PyObject *text = PyObject_GetAttrString(known.view, "__doc__");
    if (text == NULL) return NULL;
    view_method.ml_doc = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : NULL;      /* the function keeps it */
    Py_DECREF(text);
    return PyDescr_NewMethod((PyTypeObject *)class, &view_method);
}

/* Where a slot of a class lies; -1 with an exception. */
static Py_ssize_t offset_in(PyObject *class, const char *name) {
    PyObject *descriptor = PyObject_GetAttrString(class, name);
    Py_ssize_t offset = -1;
    if (descriptor == NULL) return -1;
    if (Py_IS_TYPE(descriptor, &PyMemberDescr_Type) && ((PyMemberDescrObject *)descriptor)->d_member->type == OBJECT)
        offset = ((PyMemberDescrObject *)descriptor)->d_member->offset;
    else
        PyErr_Format(PyExc_TypeError, "%R has no slot %s", class, name);
    Py_DECREF(descriptor);
    return offset;
}

/* All or nothing is taken. */
static PyObject *install(PyObject *self, PyObject *given) {
    Offsets found;
    if (!PyDict_CheckExact(given)) return PyErr_Format(PyExc_TypeError, "install() takes a dict");
#define LOOK(name)                                                                                                     \
    if (PyDict_GetItemString(given, #name) == NULL) return PyErr_Format(PyExc_KeyError, #name);
    KNOWN(LOOK)
#define FIND(class, name)                                                                                              \
    if ((found.class##_##name = offset_in(PyDict_GetItemString(given, #class), #name)) < 0) return NULL;
    SLOTS(FIND)
    at = found;
#define TAKE(name) Py_XSETREF(known.name, Py_NewRef(PyDict_GetItemString(given, #name)));
    KNOWN(TAKE)
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"dispatch", (PyCFunction)(void (*)(void))dispatch, METH_FASTCALL | METH_KEYWORDS,
     "Answer one torch call that has a dtorch tensor among its arguments; torch's `__torch_dispatch__`."},
    {"install", install, METH_O, "Take what the answers are made of; see `dtorch.native`."},
    {"view_of", view_of, METH_O, "`view` as a method of a class of tensors."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_again", "A call that was made before, answered without Python.", -1, methods,
};

PyMODINIT_FUNC PyInit__again(void) {
#define INTERN(name)                                                                                                   \
    if ((names.name = PyUnicode_InternFromString(#name)) == NULL) return NULL;
    NAMES(INTERN)
    if ((zero = PyLong_FromLong(0)) == NULL) return NULL;
    return PyModule_Create(&module);
}
