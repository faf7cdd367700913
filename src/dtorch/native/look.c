/* A look at what stood somewhere before: what `replay/places.py` does in Python, which remains the reference.

   Everything is compared by identity. Readers of the common kinds (entries of a dict, items of a list) are not
   called: what they would give is read where it lies. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Objects lie far apart and have left the processor's caches: a look at one is started before its turn. */
#define AHEAD 8
#if defined(__GNUC__)
#define SOON(list, i)                                                                                                  \
    if ((i) + AHEAD < PyList_GET_SIZE(list)) __builtin_prefetch(PyList_GET_ITEM(list, (i) + AHEAD))
#else
#define SOON(list, i)
#endif

static PyObject *dict_values, *dict_keys, *iter;
static PyTypeObject *itemgetter;

/* What is expected, and how far it has been met. */
typedef struct {
    PyObject *values;
    Py_ssize_t at;
} Expected;

static int meets(Expected *expected, PyObject *now) {
    return expected->at < PyList_GET_SIZE(expected->values) &&
           PyList_GET_ITEM(expected->values, expected->at++) == now;
}

/* Each of these: 1 where all that is read is what is expected, 0 where it is not, -1 with an exception. */

static int entries(Expected *expected, PyObject *held, int keys) {
    PyObject *key, *value;
    Py_ssize_t place = 0;
    while (PyDict_Next(held, &place, &key, &value))
        if (!meets(expected, keys ? key : value)) return 0;
    return 1;
}

static int some_entries(Expected *expected, PyObject *held, PyObject *names) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        PyObject *now = PyDict_GetItemWithError(held, PyTuple_GET_ITEM(names, i));
        if (now == NULL) return PyErr_Occurred() ? -1 : 0;
        if (!meets(expected, now)) return 0;
    }
    return 1;
}

static int items(Expected *expected, PyObject *held) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(held); i++)
        if (!meets(expected, PySequence_Fast_GET_ITEM(held, i))) return 0;
    return 1;
}

static int by_reader(Expected *expected, PyObject *read, PyObject *held) {
    PyObject *made = PyObject_CallOneArg(read, held), *found = made == NULL ? NULL : PySequence_List(made);
    int answer = found == NULL ? -1 : items(expected, found);
    Py_XDECREF(found);
    Py_XDECREF(made);
    return answer;
}

static int stands(Expected *expected, PyObject *read, PyObject *held, PyObject *names) {
    if ((read == dict_values || read == dict_keys) && PyDict_Check(held))
        return entries(expected, held, read == dict_keys);
    if (Py_IS_TYPE(read, itemgetter) && PyDict_CheckExact(held) && PyTuple_CheckExact(names))
        return some_entries(expected, held, names);
    if (read == iter && (PyList_CheckExact(held) || PyTuple_CheckExact(held))) return items(expected, held);
    return by_reader(expected, read, held);
}

/* A place that is gone has changed. */
static int gone(void) {
    if (!PyErr_ExceptionMatches(PyExc_KeyError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_AttributeError))
        return 0;
    PyErr_Clear();
    return 1;
}

static PyObject *stand(PyObject *self, PyObject *args) {
    PyObject *places;
    Expected expected = {NULL, 0};
    int answer = 1;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &places, &PyList_Type, &expected.values)) return NULL;
    for (Py_ssize_t i = 0; answer == 1 && i < PyList_GET_SIZE(places); i++) {
        PyObject *place = PyList_GET_ITEM(places, i);                                  /* read, held, owner, names */
        if (!PyTuple_Check(place) || PyTuple_GET_SIZE(place) != 4)
            return PyErr_Format(PyExc_TypeError, "stand(): %R is no place", place);
        answer = stands(&expected, PyTuple_GET_ITEM(place, 0), PyTuple_GET_ITEM(place, 1), PyTuple_GET_ITEM(place, 3));
    }
    if (answer < 0 && !gone()) return NULL;
    return PyBool_FromLong(answer == 1 && expected.at == PyList_GET_SIZE(expected.values));
}

static PyObject *same(PyObject *self, PyObject *args) {
    PyObject *attribute, *objects, *values;
    if (!PyArg_ParseTuple(args, "OO!O!", &attribute, &PyList_Type, &objects, &PyList_Type, &values)) return NULL;
    descrgetfunc get = Py_TYPE(attribute)->tp_descr_get;
    if (get == NULL) return PyErr_Format(PyExc_TypeError, "%R is no attribute of a class", attribute);
    if (PyList_GET_SIZE(objects) != PyList_GET_SIZE(values)) Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects) && i < PyList_GET_SIZE(values); i++) {
        SOON(objects, i);
        PyObject *object = PyList_GET_ITEM(objects, i), *now = get(attribute, object, (PyObject *)Py_TYPE(object));
        if (now == NULL) return NULL;
        int met = now == PyList_GET_ITEM(values, i);
        Py_DECREF(now);
        if (!met) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *alike(PyObject *self, PyObject *args) {
    PyObject *objects, *kinds, *spaces;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyList_Type, &objects, &PyList_Type, &kinds, &PyList_Type, &spaces))
        return NULL;
    if (PyList_GET_SIZE(objects) != PyList_GET_SIZE(kinds) || PyList_GET_SIZE(objects) != PyList_GET_SIZE(spaces))
        Py_RETURN_FALSE;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        SOON(objects, i);
        SOON(spaces, i);
        PyObject *object = PyList_GET_ITEM(objects, i), *space = PyList_GET_ITEM(spaces, i);
        if ((PyObject *)Py_TYPE(object) != PyList_GET_ITEM(kinds, i)) Py_RETURN_FALSE;
        if (space == Py_None) continue;
        PyObject *now = PyObject_GenericGetDict(object, NULL);
        if (now == NULL) return NULL;
        Py_DECREF(now);                                                              /* the object keeps it */
        if (now != space) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* A dict that has not been written since has its version still. Python 3.12 has taken that away. */
#if PY_VERSION_HEX < 0x030C0000
static PyObject *versions(PyObject *self, PyObject *dicts) {
    if (!PyList_Check(dicts)) return PyErr_Format(PyExc_TypeError, "versions() takes a list");
    PyObject *made = PyBytes_FromStringAndSize(NULL, PyList_GET_SIZE(dicts) * sizeof(uint64_t));
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(dicts); i++) {
        PyObject *held = PyList_GET_ITEM(dicts, i);
        if (!PyDict_Check(held)) {
            Py_DECREF(made);
            return PyErr_Format(PyExc_TypeError, "versions(): %R is no dict", held);
        }
        ((uint64_t *)PyBytes_AS_STRING(made))[i] = ((PyDictObject *)held)->ma_version_tag;
    }
    return made;
}

static int unwritten(PyObject *dicts, PyObject *versions) {
    const uint64_t *were = (const uint64_t *)PyBytes_AS_STRING(versions);
    Py_ssize_t i = 0, count = PyList_GET_SIZE(dicts);
    if (PyBytes_GET_SIZE(versions) != count * (Py_ssize_t)sizeof(uint64_t)) return 0;
    while (i < count && PyDict_Check(PyList_GET_ITEM(dicts, i)) &&
           ((PyDictObject *)PyList_GET_ITEM(dicts, i))->ma_version_tag == were[i])
        i++;
    return i == count;
}
#else
static PyObject *versions(PyObject *self, PyObject *dicts) { Py_RETURN_NONE; }
static int unwritten(PyObject *dicts, PyObject *versions) { return 0; }
#endif

static PyObject *have(PyObject *self, PyObject *args) {
    PyObject *dicts, *versions;
    if (!PyArg_ParseTuple(args, "O!O", &PyList_Type, &dicts, &versions)) return NULL;
    return PyBool_FromLong(PyBytes_CheckExact(versions) && unwritten(dicts, versions));
}

static PyMethodDef methods[] = {
    {"stand", stand, METH_VARARGS, "Whether these values stand at these places, one after the other."},
    {"same", same, METH_VARARGS, "Whether an attribute, a descriptor, of these objects is these values."},
    {"alike", alike, METH_VARARGS, "Whether objects are of these classes, their attributes in these dicts."},
    {"versions", versions, METH_O, "The versions of dicts; None where they have none."},
    {"have", have, METH_VARARGS, "Whether these dicts have these versions, and so were not written since."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_look", "A look at what stood somewhere before.", -1, methods,
};

static PyObject *from(const char *name, const char *attribute) {
    PyObject *module = PyImport_ImportModule(name), *found = NULL;
    if (module != NULL) found = PyObject_GetAttrString(module, attribute);
    Py_XDECREF(module);
    return found;
}

PyMODINIT_FUNC PyInit__look(void) {
    if ((dict_values = PyObject_GetAttrString((PyObject *)&PyDict_Type, "values")) == NULL) return NULL;
    if ((dict_keys = PyObject_GetAttrString((PyObject *)&PyDict_Type, "keys")) == NULL) return NULL;
    if ((iter = from("builtins", "iter")) == NULL) return NULL;
    if ((itemgetter = (PyTypeObject *)from("operator", "itemgetter")) == NULL) return NULL;
    return PyModule_Create(&module);
}
