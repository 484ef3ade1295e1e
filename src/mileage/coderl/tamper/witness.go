// Says what each test did and when all of them are through, past standard output.
//
// Put behind Go's own testing.go, which imports os, while candidates are judged. A program of Go has no C library into
// which witness.c could be loaded, and what it prints can be printed by anybody: a test counts as passed if this, too,
// has said so.

package testing

import (
	"os"
	mileage "syscall"
)

var (
	mileageName    = os.Getenv("MILEAGE_WITNESS")
	mileagePackage string
)

func mileageTell(text string) {
	if mileageName == "" {
		return
	}
	channel, err := mileage.Socket(mileage.AF_UNIX, mileage.SOCK_DGRAM|mileage.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	for {
		err = mileage.Sendto(channel, []byte("T"+text), 0, &mileage.SockaddrUnix{Name: "@" + mileageName})
		if err != mileage.EINTR {
			break
		}
	}
	mileage.Close(channel)
}

// Run runs the tests. It returns an exit code to pass to os.Exit.
func (m *M) Run() (code int) {
	mileagePackage = m.deps.ImportPath()
	code = m.mileageRun()
	mileageTell("end " + mileagePackage)
	return code
}

func (t *T) report() {
	if t.parent != nil && !t.Failed() && !t.Skipped() {
		mileageTell("pass " + mileagePackage + "::" + t.name)
	} else if t.parent != nil {
		mileageTell("other " + mileagePackage + "::" + t.name)
	}
	t.mileageReport()
}
