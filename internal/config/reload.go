package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Follow is what a process that began with c goes on with once its file holds next: the keys tagged reload:"live" are next's,
// all others stay, and restart names those of them that differ, which only a new start takes up. The error says what of next
// does not go with what stays.
func (c Config) Follow(next Config) (live Config, restart []string, err error) {
	restart = keep(reflect.ValueOf(&next).Elem(), reflect.ValueOf(&c).Elem(), "", false, nil)
	if err = next.check(); err != nil && len(restart) > 0 {
		err = fmt.Errorf("with %s as at the start, which only a restart changes: %w", strings.Join(restart, ", "), err)
	}
	return next, restart, next.Hide(err)
}

// keep puts what was into the place of what is now, but for what is live, and adds the paths of keys that differ to list.
func keep(now, was reflect.Value, path string, live bool, list []string) []string {
	for i := range now.NumField() {
		f := now.Type().Field(i)
		key, inline, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "" && inline == "" || key == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+key, ".")
		if inline != "" {
			at = path
		}
		lives := live
		if tag := f.Tag.Get("reload"); tag != "" {
			lives = tag == "live"
		}
		switch {
		case f.Type.Kind() == reflect.Struct:
			list = keep(now.Field(i), was.Field(i), at, lives, list)
		case !lives && !reflect.DeepEqual(now.Field(i).Interface(), was.Field(i).Interface()):
			list = append(list, at)
			now.Field(i).Set(was.Field(i))
		}
	}
	return list
}
