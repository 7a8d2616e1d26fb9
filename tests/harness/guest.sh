#!/bin/sh
# The first process of a machine of uml.py. Its environment is the end of the kernel's command line.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
export PATH LANG

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
for folder in /run /mnt; do
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
mkdir /mnt/host /mnt/disk /run/modules /run/modules/lib /run/lock
mount -t hostfs -o "$GUEST_FOLDER" none /mnt/host
hostname "$GUEST_HOST"
ip link set lo up

# The root has no /lib/modules for this kernel, and is read-only.
ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/modprobe
chmod 755 /run/modprobe
echo /run/modprobe >/proc/sys/kernel/modprobe
for module in $(echo "$GUEST_MODULES" | tr , ' '); do
    /run/modprobe "$module"
done

if [ -e /dev/ubda ]; then
    mount -t ext4 -o data=writeback,noauto_da_alloc,commit=300 /dev/ubda /mnt/disk
fi

for line in /dev/ttyS0 /dev/ttyS1; do
    stty -F "$line" raw -echo
done

# As pid 1 this shell reaps whoever lost its parent, while it waits.
"$GUEST_PYTHON" -IS "$(dirname "$0")/agent.py" &
wait $!
sync
umount /mnt/disk 2>/dev/null
poweroff -f -d
