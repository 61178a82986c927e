/* Opens a file of each of many directories, and reads how it begins: what a listing of a long run does most.

   One call of the system opens `group/name` here (openat2), where Python takes three for the directory, the file and
   the directory's close; neither part is ever followed through a link, nor leads out of the root. The descriptors stay
   open: whoever closes one must know first that this process has no lock on its file. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LONGEST_PATH = 1024 };

/* The descriptor, or -1 with `errno` set. */
static int open_below(int root, const char *path)
{
    struct open_how how = {
        /* Not to hang on a FIFO that was put in the place of a file. */
        .flags = O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
    };
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* How many bytes there are, up to that many, or -1 with `errno` set. */
static ssize_t read_begin(int descriptor, char *memory, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t count = pread(descriptor, memory + done, size - done, (off_t)done);
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        done += (size_t)count;
    }
    return (ssize_t)done;
}

static int is_absence(int number)
{
    return number == ENOENT || number == ENOTDIR || number == ELOOP || number == ENXIO;
}

/* (descriptor, device, inode, bytes or errno); None where there is no ordinary file; or the errno of a failed open. */
static PyObject *start_of(int root, const char *path, char *memory, size_t size)
{
    struct stat found;
    ssize_t count = -1;
    int descriptor, number = 0, is_file = 0;
    Py_BEGIN_ALLOW_THREADS
    descriptor = open_below(root, path);
    if (descriptor < 0 || fstat(descriptor, &found) != 0)
        number = errno;
    else if ((is_file = S_ISREG(found.st_mode)) && (count = read_begin(descriptor, memory, size)) < 0)
        number = errno;
    if (descriptor >= 0 && !is_file)
        close(descriptor); /* nothing that is no file is ever locked */
    Py_END_ALLOW_THREADS
    if (descriptor < 0 || !is_file) {
        if (number == 0 || is_absence(number))
            Py_RETURN_NONE;
        return PyLong_FromLong(number);
    }
    if (count < 0)
        return Py_BuildValue("iKKi", descriptor, (unsigned long long)found.st_dev, (unsigned long long)found.st_ino, number);
    return Py_BuildValue("iKKy#", descriptor, (unsigned long long)found.st_dev, (unsigned long long)found.st_ino, memory,
                         (Py_ssize_t)count);
}

static PyObject *py_open_starts(PyObject *self, PyObject *arguments)
{
    (void)self;
    int root;
    PyObject *groups;
    const char *name;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(arguments, "iO!sn", &root, &PyList_Type, &groups, &name, &size))
        return NULL;
    char *memory = PyMem_Malloc(size > 0 ? (size_t)size : 1);
    PyObject *starts = memory == NULL ? PyErr_NoMemory() : PyList_New(0);
    for (Py_ssize_t i = 0; starts != NULL && i < PyList_Size(groups); i++) {
        char path[LONGEST_PATH];
        const char *group = PyUnicode_AsUTF8AndSize(PyList_GetItem(groups, i), NULL);
        PyObject *start = NULL;
        if (group == NULL)
            ;
        else if ((size_t)snprintf(path, sizeof path, "%s/%s", group, name) >= sizeof path)
            PyErr_SetString(PyExc_ValueError, "the name is too long");
        else
            start = start_of(root, path, memory, (size_t)size);
        if (start == NULL || PyList_Append(starts, start) != 0)
            Py_CLEAR(starts);
        Py_XDECREF(start);
    }
    PyMem_Free(memory);
    return starts;
}

static PyMethodDef methods[] = {
    {"open_starts", py_open_starts, METH_VARARGS, "Open `group/name` of each group below the root, with its first bytes."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_starts", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__starts(void)
{
    return PyModule_Create(&module);
}
